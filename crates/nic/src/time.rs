//! Time as an argument. The type is the link model's, which stands below the engine.

pub use bowline_link::Time;
