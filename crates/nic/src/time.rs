//! Time as an argument. The type comes from the link model, a layer below the engine.

pub use bowline_link::Time;
