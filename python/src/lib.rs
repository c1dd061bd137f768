//! The extension module `bowline._bowline` (`docs/bindings.md`). The package around it is in
//! `bowline/`.

mod comm;
mod error;
mod interrupt;
mod memory;
mod ops;
mod planner;
mod work;

use pyo3::prelude::*;

/// What the package `bowline` is made of.
#[pymodule]
fn _bowline(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<comm::Communicator>()?;
    module.add_class::<work::Report>()?;
    module.add_class::<work::Work>()?;
    module.add_function(wrap_pyfunction!(comm::device_addr, module)?)?;
    module.add_function(wrap_pyfunction!(planner::plan, module)?)
}
