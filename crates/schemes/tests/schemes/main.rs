//! Schemes: the plans that they make, on networks of all kinds.

mod checks;
mod disseminate;
mod onward;
mod paths;
mod properties;
mod routes;
mod settings;
mod shapes;
mod slice_size;
mod updates;
#[path = "../world/mod.rs"]
mod world;
