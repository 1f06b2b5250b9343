//! Placement, liveness, plans, commits, jobs.
