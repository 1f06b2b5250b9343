//! What crosses the wire, versioned: the control plane (gRPC), the data plane (frames), who may talk (TLS, tokens), and the
//! seam through which everybody reaches the network.

/// The control plane's messages and services, generated from `proto/weft.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("weft.v1");
}
