//! `bowline plan`: which reliability for this link, and what it will cost.

mod advice;
mod args;
mod cores;
mod point;
mod row;

use std::error::Error;

pub(crate) use args::PlanArgs;
use point::Point;

/// Runs `bowline plan`.
pub(crate) fn run(args: &PlanArgs) -> Result<(), Box<dyn Error>> {
    let point = Point::new(args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&point.json())?);
    } else {
        print!("{}", point.text());
    }
    Ok(())
}
