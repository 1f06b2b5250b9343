//! The families of the coordinator's metrics.

use weft_proto::metrics::Family;

/// The families of the coordinator's metrics, in the order in which they are written.
pub const FAMILIES: &[Family] = &[
    Family::gauge("weft_coordinator_info", &["version"], "The coordinator and its version. Always 1."),
    Family::gauge("weft_coordinator_epoch", &[], "The epoch in which the coordinator leads: it grows with each of its starts."),
    Family::counter("weft_metadata_commits", &[], "Durable commits of the metadata."),
    // Data.
    Family::gauge(
        "weft_health",
        &["level"],
        "Whether the cluster is `healthy`, `degraded`, `at-risk` or `unavailable`, as `weft status` says: 1 for the level that it has, \
         otherwise 0.",
    ),
    Family::gauge(
        "weft_counting",
        &[],
        "Whether stripes are still being counted, after a start of the coordinator or a change of disks: 1 or 0. Meanwhile the numbers \
         of stripes and bad blocks are too low.",
    ),
    Family::gauge("weft_objects", &[], "Objects."),
    Family::gauge("weft_data_bytes", &[], "Bytes of all objects, without parity and copies."),
    Family::gauge(
        "weft_stripes",
        &["code", "further_losses"],
        "Stripes, by how many further blocks each can lose, in any combination; `unreadable`: it cannot be read now.",
    ),
    Family::gauge("weft_stripes_with_bad_blocks", &[], "Stripes with blocks that cannot be read now."),
    Family::gauge("weft_stripes_at_risk", &[], "Of those, the ones that can be read and survive no further loss."),
    Family::gauge("weft_stripes_unreadable", &[], "Of those, the ones that cannot be read now."),
    Family::gauge("weft_stripes_lost", &[], "Of those, the ones that could not be read even if all nodes were up."),
    Family::gauge(
        "weft_bad_blocks",
        &["kind"],
        "Blocks that cannot be read, each counted once: `corrupt`, `missing`, `coming` (acknowledged early, not yet stored), and those \
         `on_failed_disks`, `on_down_nodes` and `on_lost_nodes`.",
    ),
    Family::gauge(
        "weft_failed_disk_blocks",
        &[],
        "Blocks of failed disks that were not rebuilt yet, as far as known; at least 1 for a disk with such blocks.",
    ),
    Family::gauge("weft_crowded_stripes", &[], "Complete stripes with more blocks in a rack than they can lose. They are moved."),
    // Nodes and space.
    Family::gauge("weft_nodes", &["state"], "Nodes: `up`, `down` (silent), or `lost` (their blocks are rebuilt elsewhere)."),
    Family::gauge("weft_node_up", &["node", "rack"], "Whether the node is up: 1 or 0."),
    Family::gauge(
        "weft_node_suspect",
        &["node", "rack"],
        "Whether plans avoid the node for a while, because it failed in one: 1 or 0 (docs/operations.md, \"Nodes\").",
    ),
    Family::gauge("weft_disk_failed", &["node", "disk"], "Whether the disk failed, as the metadata knows it: 1 or 0."),
    Family::gauge(
        "weft_disk_trouble",
        &["node", "disk", "trouble"],
        "Whether a disk that works is `slow` or `failing`: 1 or 0 (`weft node disk ls` says why).",
    ),
    Family::gauge(
        "weft_draining_blocks",
        &["node", "disk"],
        "Blocks that a node that is being drained still has, or, with its directory in `disk`, a disk, and those of puts and repairs that \
         have not ended there; 0: it may be switched off or taken out. Absent otherwise.",
    ),
    Family::gauge("weft_space_size_bytes", &[], "Size of all disks that can be used."),
    Family::gauge("weft_space_free_bytes", &[], "Free space of these disks."),
    Family::gauge("weft_space_kept_bytes", &[], "What puts leave free of it, so that the largest node can be rebuilt."),
    Family::gauge("weft_space_fits_bytes", &[], "How much new data fits under the default policy."),
    Family::gauge("weft_quarantined_blocks", &[], "Blocks out of service that nodes keep for a while."),
    Family::gauge("weft_quarantined_bytes", &[], "The bytes of those blocks."),
    // Repair.
    Family::gauge("weft_repair_auto", &[], "Whether lost blocks are rebuilt without a person: 1 or 0 (`weft repair auto`)."),
    Family::gauge(
        "weft_repair_stopped",
        &[],
        "Whether nothing is rebuilt without a person now: it is turned off, the coordinator has just started, or it hears too few \
         nodes. 1 or 0.",
    ),
    Family::gauge(
        "weft_repair_guarded",
        &[],
        "Whether so many nodes are silent at once that none is declared lost without a person: 1 or 0.",
    ),
    Family::gauge("weft_repair_stripes_left", &[], "Stripes that are being rebuilt without a person or will be next."),
    Family::gauge("weft_repair_stripes_under_way", &[], "Stripes that are being rebuilt without a person now."),
    Family::gauge(
        "weft_repair_stripes_waiting",
        &["wait"],
        "Stripes that could not be rebuilt yet: for lack of `nodes` or `space`, because the rebuilt bytes differ from the recorded \
         `checksums`, or for another reason (`retry`).",
    ),
    Family::gauge("weft_repair_limited", &[], "Whether the limit on repair holds repair back now: 1 or 0."),
    Family::gauge(
        "weft_repair_limit_bytes_per_second",
        &[],
        "The lowest rate to which the limit on repair holds a link or disk of any node; absent without a limit.",
    ),
    Family::counter(
        "weft_repaired_blocks",
        &["scheme"],
        "Blocks that were rebuilt or moved and recorded, by whatever asked for it.",
    ),
    Family::counter("weft_repaired_bytes", &["scheme"], "The bytes of those blocks."),
    Family::counter(
        "weft_repair_failed_plans",
        &["scheme"],
        "Plans of repairs that could not be opened, or of which a node failed. Usually another plan continues the repair.",
    ),
    // Scrub.
    Family::gauge(
        "weft_scrub_period_seconds",
        &[],
        "The time in which all stripes are checked once in the background; 0: they are checked only by `weft scrub`.",
    ),
    Family::gauge("weft_scrub_began_timestamp_seconds", &[], "When the pass over all stripes that runs began; 0: none runs."),
    Family::gauge("weft_scrub_last_end_timestamp_seconds", &[], "When the last whole pass ended; 0: there was none."),
    Family::gauge("weft_scrub_late", &[], "Whether the pass takes longer than the period: 1 or 0."),
    Family::gauge(
        "weft_scrub_checked_stripes",
        &["pass"],
        "Stripes that were checked in the background, in the `current` pass and in the `last` whole one.",
    ),
    Family::gauge("weft_scrub_checked_bytes", &["pass"], "The bytes of blocks that were read for that."),
    Family::gauge("weft_scrub_wrong_blocks", &["pass"], "Wrong blocks that were found. They are rebuilt."),
    Family::gauge(
        "weft_scrub_inconsistent_stripes",
        &["pass"],
        "Stripes whose blocks match their recorded checksums and contradict each other. They are not rebuilt: `weft status --json` names them.",
    ),
    Family::gauge(
        "weft_scrub_away_blocks",
        &["pass"],
        "Blocks that were not read, because their nodes were down when their stripe had its turn.",
    ),
    Family::gauge("weft_scrub_not_checked_stripes", &["pass"], "Stripes that could not be checked yet, and are tried again."),
    // Updates in place.
    Family::gauge("weft_open_stripes", &[], "Stripes that are open for updates in place."),
    Family::counter("weft_stripes_opened", &[], "Times that a stripe was opened for updates."),
    Family::counter(
        "weft_stripes_sealed",
        &[],
        "Seals of open stripes: before they are settled, and when a block does not answer.",
    ),
    Family::counter("weft_stripes_settled", &[], "Times that a stripe was settled."),
    Family::counter(
        "weft_open_stripe_reads",
        &["outcome"],
        "Questions of clients for bytes of open stripes: `nodes` (they are read at the nodes of their data blocks, and stay open), or `settled` (they are settled first). A client that cannot read at the nodes asks again, and both count.",
    ),
    // Jobs.
    Family::gauge("weft_job_running", &["job", "kind"], "Whether a job that has not ended runs (1) or is paused (0)."),
    Family::gauge("weft_job_size_blocks", &["job", "kind"], "The whole work of that job."),
    Family::gauge("weft_job_size_bytes", &["job", "kind"], "The bytes of that work."),
    Family::gauge("weft_job_done_blocks", &["job", "kind"], "What is done of it."),
    Family::gauge("weft_job_done_bytes", &["job", "kind"], "What is done of its bytes."),
    Family::gauge("weft_job_left_blocks", &["job", "kind"], "What could not be done of it; some of it may be tried again."),
    Family::gauge("weft_job_left_bytes", &["job", "kind"], "The bytes of that."),
    Family::counter(
        "weft_jobs_ended",
        &["kind", "outcome"],
        "Jobs that have ended: `done`, `failed` (something is left, `weft job show` says what), or `cancelled`.",
    ),
    // Plans.
    Family::histogram(
        "weft_plan_seconds",
        &["kind"],
        "Time to make and prove a plan: for a `read`, a `write`, a `repair` or a `check`.",
    ),
    Family::counter("weft_plans_refused", &["kind"], "Times that no plan could be made."),
    Family::counter("weft_plans_failed", &["reaction"], "Plans that failed while they ran, by what their first error asks for."),
    Family::counter(
        "weft_plans_starved",
        &[],
        "Of the plans that failed while they ran, those in which links stood still while others of the same nodes moved: the network was full.",
    ),
    Family::counter("weft_plan_busy_waits", &[], "Times that the opening of a plan waited because an agent was busy."),
    Family::counter("weft_plan_busy_wait_seconds", &[], "The time of these waits; many plans can wait at the same time."),
    Family::counter(
        "weft_plan_cache_lookups",
        &["cache", "result"],
        "Lookups in the caches of planning: proved `shapes` and known failure `patterns`; a `hit` or a `miss`.",
    ),
];
