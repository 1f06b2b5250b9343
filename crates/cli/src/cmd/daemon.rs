//! `weft coordinator` and `weft agent`: the daemons.

use super::logging::start_logging;
use clap::Args;
use rustix::{fs::Mode, process::umask};
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};
use weft_agent::{Agent, AgentConfig, Limits, Throttle};
use weft_cli::{exit::Exit, interrupt::Signals, local::PidFile, seed::secret_seed, settings};
use weft_client::StripeConverter;
use weft_coordinator::{Coordinator, CoordinatorConfig};
use weft_meta::MetaMode;
use weft_proto::TcpNet;
use weft_types::{ByteSize, ClassLimits, ClusterId, Error, Result, SystemClock};

/// Run a coordinator: it keeps the metadata and makes, verifies and commits plans
///
/// Settings come from a TOML file and from the environment: WEFT_COORDINATOR_LISTEN=10.0.0.1:7400 sets listen = "10.0.0.1:7400",
/// and WEFT_COORDINATOR_LIMITS__REPAIR_PERCENT=50 sets limits.repair_percent = 50. Relative paths are relative to the file.
///
/// Limits apply to all nodes: limits.repair_percent and limits.scrub_percent bound what repairs and scrubs use of a node's memory,
/// connections and disks; limits.repair_bytes_per_s and limits.scrub_bytes_per_s bound what they send. An agent's own lower limits
/// take precedence.
///
/// Prometheus reads metrics from http://ADDR/metrics, by default on a free port of 127.0.0.1; the log and `weft cluster status --json`
/// tell it. docs/metrics.md lists them.
///
/// WEFT_LOG selects what is logged: info, debug, weft_coordinator=debug. docs/settings.md lists all settings.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  cat > coordinator.toml <<END
  listen = \"10.0.0.1:7400\"
  dir = \"/var/lib/weft/coordinator\"
  # with ca.pem, coordinator.pem and coordinator-key.pem, or insecure = true
  certificates = \"/etc/weft/certificates\"
  [limits]
  repair_percent = 50
  repair_bytes_per_s = \"100MiB\"
  END
  weft certificate issue coordinator client --authority authority
  weft coordinator --config coordinator.toml --metrics 127.0.0.1:7401
  curl -s http://127.0.0.1:7401/metrics

EXIT CODES
  0 stopped on request   1 fatal error   2 invalid settings   3 no such file")]
pub(super) struct RunCoordinator {
    /// Settings, a TOML file
    #[arg(long, env = "WEFT_COORDINATOR_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve metrics for Prometheus on this address, host:port, or off; replaces the setting `metrics`
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
    /// Write the process id to this file and hold a lock on it; a second process with the same file is refused
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
}

/// Run an agent: it stores blocks on the disks of a node and executes its share of plans
///
/// Settings come from a TOML file and from the environment: WEFT_AGENT_RACK=r2 sets rack = "r2", and
/// WEFT_AGENT_LIMITS__MEMORY_BUDGET=1GiB sets limits.memory_budget = "1GiB". Relative paths are relative to the file.
///
/// Prometheus reads metrics from http://ADDR/metrics, by default on a free port of 127.0.0.1; the log and `weft node ls --json` tell it.
/// docs/metrics.md lists them.
///
/// Reads and writes have priority over repairs, and repairs over scrubs. Repairs can use limits.repair_percent (70) and scrubs
/// limits.scrub_percent (20) of the agent's memory, connections and disks.
///
/// WEFT_LOG selects what is logged: info, debug, weft_agent=debug. docs/settings.md lists all settings.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  cat > agent.toml <<END
  name = \"node-07\"
  rack = \"r2\"
  coordinators = [\"10.0.0.1:7400\"]
  data_listen = \"10.0.0.17:7411\"
  control_listen = \"10.0.0.17:7412\"
  state_dir = \"/var/lib/weft\"
  disks = [\"/srv/weft/a\", \"/srv/weft/b\"]
  # with ca.pem, agent-node-07.pem and agent-node-07-key.pem, or insecure = true
  certificates = \"/etc/weft/certificates\"
  [limits]
  memory_budget = \"1GiB\"
  repair_percent = 50
  END
  weft certificate issue agent:node-07 --authority authority
  weft agent --config agent.toml --metrics 127.0.0.1:7413
  curl -s http://127.0.0.1:7413/metrics

EXIT CODES
  0 stopped on request   1 fatal error   2 invalid settings   3 no such file")]
pub(super) struct RunAgent {
    /// Settings, a TOML file
    #[arg(long, env = "WEFT_AGENT_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve metrics for Prometheus on this address, host:port, or off; replaces the setting `metrics`
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
    /// Write the process id to this file and hold a lock on it; a second process with the same file is refused
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
}

impl RunCoordinator {
    pub(super) fn run(self) -> Result<Exit> {
        let _held = hold(self.pid_file)?;
        let mut config = coordinator_config(self.config.as_deref())?;
        config.metrics = self.metrics.unwrap_or(config.metrics);
        start_logging();
        let seams = weft_coordinator::Seams {
            net: Arc::new(TcpNet::default()),
            clock: Arc::new(SystemClock),
            seed: secret_seed()?,
            meta_mode: MetaMode::Pool,
        };
        run(async |mut signals| {
            let mut coordinator = Coordinator::start(config, seams).await?;
            tokio::select! {
                ended = coordinator.ended() => ended,
                signal = signals.received() => {
                    tracing::info!("the coordinator stops on {signal}");
                    coordinator.shutdown().await?;
                    tracing::info!("the coordinator has stopped");
                    Ok(())
                }
            }
        })
    }
}

impl RunAgent {
    pub(super) fn run(self) -> Result<Exit> {
        let _held = hold(self.pid_file)?;
        let (file, prefix) = (self.config.as_deref(), "WEFT_AGENT_");
        let mut config = settings::read(file, prefix, std::env::vars_os(), &sample_agent(), settings::agent_paths)?;
        config.metrics = self.metrics.unwrap_or(config.metrics);
        config.validate()?;
        start_logging();
        let seams = weft_agent::Seams::real(secret_seed()?, Arc::new(StripeConverter)).throttled(&config.throttle);
        run(async |mut signals| {
            let agent = Agent::start(config, seams).await?;
            let stopper = agent.stopper();
            tokio::spawn(async move {
                let signal = signals.received().await;
                tracing::info!("the agent stops on {signal}");
                stopper.stop();
            });
            agent.run().await?;
            tracing::info!("the agent has stopped");
            Ok(())
        })
    }
}

/// The settings of a coordinator, from a file and from the environment.
pub(super) fn coordinator_config(file: Option<&Path>) -> Result<CoordinatorConfig> {
    settings::read(file, "WEFT_COORDINATOR_", std::env::vars_os(), &sample_coordinator(), settings::coordinator_paths)
}

/// Runs first, so that the process that started the daemon can find it. Files that the daemon creates are private to its user.
fn hold(pid_file: Option<PathBuf>) -> Result<Option<File>> {
    umask(Mode::RWXG | Mode::RWXO);
    pid_file.map(|path| PidFile::new(path).take()).transpose()
}

/// Settings with all optional fields present.
pub(super) fn sample_coordinator() -> CoordinatorConfig {
    let limits = ClassLimits {
        repair_percent: Some(0),
        scrub_percent: Some(0),
        repair_bytes_per_s: Some(ByteSize(0)),
        scrub_bytes_per_s: Some(ByteSize(0)),
    };
    let (cluster, certificates) = (Some(ClusterId(0)), Some(PathBuf::new()));
    CoordinatorConfig { cluster, certificates, limits, ..CoordinatorConfig::default() }
}

/// Settings with all optional fields present.
pub(super) fn sample_agent() -> AgentConfig {
    AgentConfig {
        name: String::new(),
        rack: String::new(),
        zone: String::new(),
        cluster: Some(ClusterId(0)),
        coordinators: vec![String::new()],
        data_listen: String::new(),
        control_listen: String::new(),
        data_advertise: Some(String::new()),
        control_advertise: Some(String::new()),
        metrics: String::new(),
        state_dir: PathBuf::new(),
        disks: vec![PathBuf::new()],
        certificates: Some(PathBuf::new()),
        insecure: false,
        limits: Limits::default(),
        throttle: Throttle {
            disk_bytes_per_s: Some(ByteSize(0)),
            coding_bytes_per_s: Some(ByteSize(0)),
            network_bytes_per_s: Some(ByteSize(0)),
            sync_us: Some(0),
        },
    }
}

fn run(daemon: impl AsyncFnOnce(Signals) -> Result<()>) -> Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::fatal(format!("cannot start: {error}")))?;
    runtime.block_on(async { daemon(Signals::register()?).await }).map(|()| Exit::Ok)
}
