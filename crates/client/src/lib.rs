//! The client library for applications: put, get and repair objects of a weft cluster.
//!
//! ```no_run
//! # async fn example() -> weft_types::Result<()> {
//! use weft_client::{Client, ClientConfig, GetOptions, PutOptions};
//! use weft_proto::{Peer, Security, certs::CertificateFiles};
//!
//! let files = CertificateFiles::in_dir("cluster/certs".as_ref(), &Peer::Client);
//! let config = ClientConfig::new(["127.0.0.1:7400"], Security::load(&files)?);
//! let client = Client::connect(config).await?;
//!
//! client.put("photos", "cat.jpg", &b"not really a cat"[..], &PutOptions::default()).await?;
//! let mut bytes = Vec::new();
//! client.get("photos", "cat.jpg", &mut bytes, &GetOptions::default()).await?;
//! assert_eq!(bytes, b"not really a cat");
//! client.close().await;
//! # Ok(()) }
//! ```
//!
//! The coordinator makes the plans. A client runs its own share of each plan with the same engine as the agents: in a put it codes and
//! sends; in a get it receives, and compares rebuilt bytes with recorded checksums before it returns them.

mod background;
mod calls;
mod client;
mod config;
mod convert;
mod destination;
mod fetch;
mod garbage;
mod get;
mod jobs;
mod lease;
mod links;
mod nodes;
mod objects;
mod open_read;
mod pages;
mod paths;
mod place;
mod ports;
mod probes;
mod progress;
mod put;
mod range;
mod repair;
mod stripe_data;
mod sums;
mod update_links;
mod write;

pub use client::Client;
pub use config::{ClientConfig, Limits};
pub use convert::StripeConverter;
pub use destination::Destination;
pub use get::{GetOptions, Got};
pub use jobs::{ConvertOptions, JobChange, RepairNodeOptions};
pub use objects::{ListOptions, Listed, Listing, REMOVED_MAX, Removed};
pub use paths::io_error;
pub use probes::LinkProbe;
pub use progress::{Progress, ProgressFn};
pub use put::PutOptions;
pub use range::ByteRange;
pub use repair::{Repair, RepairOptions};
pub use sums::UnitSums;
pub use write::{PlannedBlock, PlannedStripe, WriteLog, WriteOptions, WritePlan, Writer, Wrote};

pub use weft_proto::DiskMode;
/// Messages of the control plane that the client sends and returns.
pub use weft_proto::v1 as api;
