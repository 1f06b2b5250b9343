//! `weft coordinator` and `weft agent`: the daemons.

use clap::Args;
use std::{
    env::VarError,
    fs::File,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    sync::Arc,
};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};
use weft_agent::{Agent, AgentConfig, Limits, Throttle};
use weft_cli::{exit::Exit, interrupt::Signals, local::PidFile, seed::seed, settings};
use weft_client::StripeConverter;
use weft_coordinator::{Coordinator, CoordinatorConfig};
use weft_meta::MetaMode;
use weft_proto::TcpNet;
use weft_types::{ByteSize, ClassLimits, ClusterId, Error, Result, SystemClock};

/// Run a coordinator: it keeps the metadata, makes and verifies plans, commits
///
/// Settings come from a TOML file and from the environment: WEFT_COORDINATOR_LISTEN=10.0.0.1:7400 is listen = "10.0.0.1:7400",
/// and WEFT_COORDINATOR_LIMITS__REPAIR_PERCENT=50 is limits.repair_percent = 50. Limits bound all nodes: limits.repair_percent and
/// limits.scrub_percent what repairs and scrubs use of a node's memory, connections and disks, limits.repair_bytes_per_s and
/// limits.scrub_bytes_per_s what they send. Where an agent's own limits are lower, those hold. Relative paths are relative to the file. WEFT_LOG says what is logged: info, debug, weft_coordinator=debug.
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
  weft coordinator --config coordinator.toml

EXIT CODES
  0 asked to stop, and stopped   1 it cannot go on   2 settings that make no sense   3 no such file")]
pub(super) struct RunCoordinator {
    /// The settings, a TOML file
    #[arg(long, env = "WEFT_COORDINATOR_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write the process's number into this file, and hold a lock on it: a second process with the same file is refused
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
}

/// Run an agent: it keeps blocks on the disks of a node, and does its share of plans
///
/// Settings come from a TOML file and from the environment: WEFT_AGENT_RACK=r2 is rack = "r2", and
/// WEFT_AGENT_LIMITS__MEMORY_BUDGET=1GiB is limits.memory_budget = "1GiB". Reads and writes go before repairs, and these before
/// scrubs, which may use limits.repair_percent (70) and limits.scrub_percent (20) of its memory, connections and disks. Relative paths are relative to the file. WEFT_LOG says
/// what is logged: info, debug, weft_agent=debug.
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
  weft agent --config agent.toml

EXIT CODES
  0 asked to stop, and stopped   1 it cannot go on   2 settings that make no sense   3 no such file")]
pub(super) struct RunAgent {
    /// The settings, a TOML file
    #[arg(long, env = "WEFT_AGENT_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write the process's number into this file, and hold a lock on it: a second process with the same file is refused
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
}

impl RunCoordinator {
    pub(super) fn run(self) -> Result<Exit> {
        let _held = hold(self.pid_file)?;
        let config = coordinator_config(self.config.as_deref())?;
        start_logging();
        let seams = weft_coordinator::Seams {
            net: Arc::new(TcpNet::default()),
            clock: Arc::new(SystemClock),
            seed: seed()?,
            meta_mode: MetaMode::Pool,
        };
        run(async |mut signals| {
            let mut coordinator = Coordinator::start(config, seams).await?;
            tokio::select! {
                ended = coordinator.ended() => ended,
                () = signals.received() => coordinator.shutdown().await,
            }
        })
    }
}

impl RunAgent {
    pub(super) fn run(self) -> Result<Exit> {
        let _held = hold(self.pid_file)?;
        let (file, prefix) = (self.config.as_deref(), "WEFT_AGENT_");
        let config = settings::read(file, prefix, std::env::vars_os(), &sample_agent(), settings::agent_paths)?;
        config.validate()?;
        start_logging();
        let seams = weft_agent::Seams::real(seed()?, Arc::new(StripeConverter));
        run(async |mut signals| {
            let agent = Agent::start(config, seams).await?;
            let stopper = agent.stopper();
            tokio::spawn(async move {
                signals.received().await;
                stopper.stop();
            });
            agent.run().await
        })
    }
}

/// The settings of a coordinator, from a file and from the environment.
pub(super) fn coordinator_config(file: Option<&Path>) -> Result<CoordinatorConfig> {
    let limits = ClassLimits {
        repair_percent: Some(0),
        scrub_percent: Some(0),
        repair_bytes_per_s: Some(ByteSize(0)),
        scrub_bytes_per_s: Some(ByteSize(0)),
    };
    let (cluster, certificates) = (Some(ClusterId(0)), Some(PathBuf::new()));
    let sample = CoordinatorConfig { cluster, certificates, limits, ..CoordinatorConfig::default() };
    settings::read(file, "WEFT_COORDINATOR_", std::env::vars_os(), &sample, settings::coordinator_paths)
}

/// The first thing that a daemon does: who started it can find it from then on.
fn hold(pid_file: Option<PathBuf>) -> Result<Option<File>> {
    pid_file.map(|path| PidFile::new(path).take()).transpose()
}

fn sample_agent() -> AgentConfig {
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
        state_dir: PathBuf::new(),
        disks: vec![PathBuf::new()],
        certificates: Some(PathBuf::new()),
        insecure: false,
        limits: Limits::default(),
        throttle: Throttle {
            disk_bytes_per_s: Some(ByteSize(0)),
            coding_bytes_per_s: Some(ByteSize(0)),
            network_bytes_per_s: Some(ByteSize(0)),
        },
    }
}

fn run(daemon: impl AsyncFnOnce(Signals) -> Result<()>) -> Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::fatal(format!("cannot start: {error}")))?;
    runtime.block_on(async { daemon(Signals::register()?).await }).map(|()| Exit::Ok)
}

fn start_logging() {
    let (targets, wrong) = match std::env::var("WEFT_LOG") {
        Ok(said) => match parse_log(&said) {
            Ok(targets) => (targets, None),
            Err(error) => (usual_log(), Some(format!("WEFT_LOG={said}: {error}"))),
        },
        Err(VarError::NotPresent) => (usual_log(), None),
        Err(error) => (usual_log(), Some(format!("WEFT_LOG: {error}"))),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry().with(lines).with(targets).init();
    if let Some(wrong) = wrong {
        tracing::warn!("{wrong}: info is logged instead");
    }
}

fn usual_log() -> Targets {
    Targets::new().with_default(LevelFilter::INFO)
}

/// What is logged: levels, and modules with their levels. Nothing at all stands for errors.
fn parse_log(said: &str) -> Result<Targets, String> {
    let parts: Vec<&str> = said.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if let Some(part) = parts.iter().find(|part| part.contains('[')) {
        return Err(format!("'{part}' names a span: only levels and modules can be chosen, info or weft_coordinator=debug"));
    }
    match parts.is_empty() {
        true => Ok(Targets::new().with_default(LevelFilter::ERROR)),
        false => parts.join(",").parse::<Targets>().map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn levels_and_modules_say_what_is_logged() {
        let logs = |said: &str, target: &str, level: Level| parse_log(said).unwrap().would_enable(target, &level);
        assert!(logs("info", "weft_agent", Level::INFO) && !logs("info", "weft_agent", Level::DEBUG));
        let both = "warn, weft_coordinator=debug,";
        assert!(logs(both, "weft_coordinator::jobs", Level::DEBUG) && !logs(both, "weft_agent", Level::INFO));
        assert!(logs("weft_agent", "weft_agent", Level::TRACE) && !logs("weft_agent", "weft_client", Level::ERROR));
        assert!(logs("", "weft_agent", Level::ERROR) && !logs("", "weft_agent", Level::WARN));
        assert!(!logs("off", "weft_agent", Level::ERROR));
        for wrong in ["weft_agent=loud", "a=b=c", "weft_agent[span]=debug"] {
            let error = parse_log(wrong).unwrap_err();
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
