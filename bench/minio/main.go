// A client of MinIO, for comparing weft with it: one command is one process, as with weft.
//
//	client ADDRESS make-bucket
//	client ADDRESS put FILE KEY
//	client ADDRESS get KEY FILE       (FILE "-": the data goes to stdout)
//	client ADDRESS reads KEY COUNT    (one after another in this process: prints p50 and p99 in milliseconds)
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const bucket = "measured"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

func run(words []string) error {
	if len(words) < 2 {
		return fmt.Errorf("too few arguments")
	}
	address, command, words := words[0], words[1], words[2:]
	arguments := map[string]int{"make-bucket": 0, "put": 2, "get": 2, "reads": 2}
	if count, known := arguments[command]; !known || len(words) != count {
		return fmt.Errorf("%s with %d arguments is not a command", command, len(words))
	}
	// The default credentials of a server. It listens on loopback only.
	credential := credentials.NewStaticV4("minioadmin", "minioadmin", "")
	client, err := minio.New(address, &minio.Options{Creds: credential, Region: "us-east-1"})
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch command {
	case "make-bucket":
		return client.MakeBucket(ctx, bucket, minio.MakeBucketOptions{})
	case "put":
		// No SHA-256 of the payload: it takes longer than everything else.
		options := minio.PutObjectOptions{DisableContentSha256: true}
		_, err := client.FPutObject(ctx, bucket, words[1], words[0], options)
		return err
	case "get":
		return get(ctx, client, words[0], words[1])
	default:
		return reads(ctx, client, words[0], words[1])
	}
}

func get(ctx context.Context, client *minio.Client, key, path string) error {
	object, err := client.GetObject(ctx, bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return err
	}
	defer object.Close()
	file := os.Stdout
	if path != "-" {
		if file, err = os.Create(path); err != nil {
			return err
		}
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{object}, make([]byte, 1<<20)); err != nil {
		return err
	}
	return file.Close()
}

func reads(ctx context.Context, client *minio.Client, key, text string) error {
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 {
		return fmt.Errorf("%s is not a count", text)
	}
	times := make([]float64, 0, count)
	for range count {
		begin := time.Now()
		object, err := client.GetObject(ctx, bucket, key, minio.GetObjectOptions{})
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, object); err != nil {
			return err
		}
		object.Close()
		times = append(times, time.Since(begin).Seconds()*1e3)
	}
	sort.Float64s(times)
	fmt.Printf("%.3f %.3f\n", times[count/2], times[(count-1)*99/100])
	return nil
}
