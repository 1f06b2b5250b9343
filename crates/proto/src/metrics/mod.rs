//! Metrics: a daemon declares its families ([`Family`]), fills [`Figures`] at each scrape, and serves them ([`Server`]) for Prometheus.
//!
//! Counters are incremented where the thing happens. Everything else is read from the daemon's own state when it is scraped.

mod calls;
mod families;
mod server;

pub use calls::{CALLS, CallMeter, add_calls};
pub use families::{Family, Figures, Histogram, Kind, Value, page};
pub use prometheus_client::metrics::counter::Counter;
pub use server::{ANY_PORT, OFF, Scraped, Server, check_address};
