//! The model by its statistics, and the text form.

mod link;
mod loss;
mod profile;
