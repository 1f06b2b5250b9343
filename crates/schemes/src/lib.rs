//! Schemes: from a job to a plan, one file a scheme.
