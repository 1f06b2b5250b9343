// A client of MinIO, for comparing weft with it: one command is one process, as with weft.
//
//	client ADDRESS make-bucket
//	client ADDRESS put FILE KEY
//	client ADDRESS get KEY FILE        (syncs the file and its directory; a device is only written to)
//	client ADDRESS objects SIZE COUNT  (puts, gets and removes objects one after another; prints p50 and p99 of the gets, in ms)
//	client ADDRESS version SERVER      (versions of this client and of the server's binary)
package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"runtime/debug"
	"sort"
	"strconv"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	bucket = "measured"
	// Consecutive objects begin this many bytes apart in the same random bytes.
	step = 64
	// `weft bench objects` waits this long between its phases: four heartbeats, which report its counters.
	pause = 4 * time.Second
)

// No SHA-256 of the payload: it takes longer than everything else.
var options = minio.PutObjectOptions{DisableContentSha256: true}

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
	arguments := map[string]int{"make-bucket": 0, "put": 2, "get": 2, "objects": 2, "version": 1}
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
		_, err := client.FPutObject(ctx, bucket, words[1], words[0], options)
		return err
	case "get":
		return get(ctx, client, words[0], words[1])
	case "objects":
		return objects(ctx, client, words[0], words[1])
	default:
		return version(words[0])
	}
}

func get(ctx context.Context, client *minio.Client, key, path string) error {
	object, err := client.GetObject(ctx, bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return err
	}
	defer object.Close()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{object}, make([]byte, 1<<20)); err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	return durable(file)
}

// Makes a file and its name durable, as weft does.
func durable(file *os.File) error {
	if err := file.Sync(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file.Name()))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// The same steps as those of `weft bench objects --clients 1`: put and get one object to warm up, put all, get all, remove all.
func objects(ctx context.Context, client *minio.Client, sizeText, countText string) error {
	size, err := strconv.Atoi(sizeText)
	if err != nil || size < 1 {
		return fmt.Errorf("%s is not a size", sizeText)
	}
	count, err := strconv.Atoi(countText)
	if err != nil || count < 1 {
		return fmt.Errorf("%s is not a count", countText)
	}
	data := make([]byte, size+(count+1)*step)
	rand.New(rand.NewSource(1)).Read(data)
	of := func(number int) []byte { return data[number*step:][:size] }
	key := func(number int) string { return fmt.Sprintf("objects/%d", number) }
	put := func(number int) error {
		_, err := client.PutObject(ctx, bucket, key(number), bytes.NewReader(of(number)), int64(size), options)
		return err
	}
	if err := put(count); err != nil {
		return err
	}
	if _, err := read(ctx, client, key(count), of(count)); err != nil {
		return err
	}
	for number := range count {
		if err := put(number); err != nil {
			return err
		}
	}
	time.Sleep(pause)
	times := make([]float64, count)
	for number := range count {
		taken, err := read(ctx, client, key(number), of(number))
		if err != nil {
			return err
		}
		times[number] = taken.Seconds() * 1e3
	}
	for number := range count + 1 {
		if err := client.RemoveObject(ctx, bucket, key(number), minio.RemoveObjectOptions{}); err != nil {
			return err
		}
	}
	sort.Float64s(times)
	// The smallest value that is not below this percentage of all values.
	at := func(percent int) float64 { return times[max((count*percent+99)/100, 1)-1] }
	fmt.Printf("%.3f %.3f\n", at(50), at(99))
	return nil
}

// The time of reading an object. The comparison with what was put is not part of it.
func read(ctx context.Context, client *minio.Client, key string, expected []byte) (time.Duration, error) {
	back := bytes.NewBuffer(make([]byte, 0, len(expected)+bytes.MinRead))
	begin := time.Now()
	object, err := client.GetObject(ctx, bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return 0, err
	}
	_, err = back.ReadFrom(object)
	object.Close()
	taken := time.Since(begin)
	if err == nil && !bytes.Equal(back.Bytes(), expected) {
		err = fmt.Errorf("%s differs from what was put", key)
	}
	return taken, err
}

func version(server string) error {
	built, err := buildinfo.ReadFile(server)
	if err != nil {
		return err
	}
	fmt.Printf("MinIO %s (%s)", built.Main.Version, built.GoVersion)
	if own, ok := debug.ReadBuildInfo(); ok {
		for _, module := range own.Deps {
			if module.Path == "github.com/minio/minio-go/v7" {
				fmt.Printf(", minio-go %s (%s), one stream", module.Version, own.GoVersion)
			}
		}
	}
	fmt.Println()
	return nil
}
