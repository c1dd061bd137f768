//! Exercises every call of NCCL's network plug-in interface the way NCCL does: the library is
//! loaded by its path, and two processes talk through it.
//!
//! ```text
//! nccl-net-harness [--plugin FILE] [--versions 8,9,10,11] [--transports rc,xp,sr-nack,ec-mds,auto]
//!                  [--scenes NAME,…] [--full] [--json]
//! ```

mod deaths;
mod messages;
mod net;
mod rank;
mod rules;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rank::{Outcome, Rank, address};

const HELP: &str = "\
Drives every call of the plug-in, in two processes.

usage: nccl-net-harness [--plugin FILE] [--versions LIST] [--transports LIST] [--scenes LIST] [--full] [--json]

  --plugin FILE      the library; unless given, the one beside this program
  --versions LIST    of the interface: 8,9,10,11
  --transports LIST  rc,xp,sr-nack,ec-mds,auto
  --scenes LIST      sizes,connections,groups,rules,strangers,reload,
                     killed-receiver,killed-sender,killed-listener
  --full             1 B to 64 MiB instead of 1 MiB
  --json             the last line is one JSON object";

/// What two ranks do together.
type Scene = fn(&mut Rank) -> Outcome;

const SCENES: [(&str, Scene); 9] = [
    ("sizes", messages::sizes),
    ("connections", messages::connections),
    ("groups", messages::groups),
    ("rules", rules::rules),
    ("strangers", rules::strangers),
    ("reload", messages::reload),
    ("killed-receiver", deaths::receiver),
    ("killed-sender", deaths::sender),
    ("killed-listener", deaths::listener),
];

const TRANSPORTS: [&str; 5] = ["rc", "xp", "sr-nack", "ec-mds", "auto"];
/// Longer than every wait of a scene: a rank that is still running by then hangs.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Default)]
struct Options {
    plugin: Option<PathBuf>,
    versions: Vec<u32>,
    transports: Vec<String>,
    scenes: Vec<String>,
    is_full: bool,
    is_json: bool,
    /// Set in the processes that play a scene.
    rank: Option<u32>,
}

fn parse(args: impl Iterator<Item = String>) -> Outcome<Options> {
    let mut options = Options::default();
    let mut args = args;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--plugin" => options.plugin = Some(value()?.into()),
            "--versions" => {
                let number = |text: &str| text.parse().map_err(|_| format!("no version {text}"));
                options.versions = value()?.split(',').map(number).collect::<Outcome<_>>()?;
            }
            "--transports" => options.transports = list(&value()?, &TRANSPORTS)?,
            "--scenes" => options.scenes = list(&value()?, &SCENES.map(|(name, _)| name))?,
            "--full" => options.is_full = true,
            "--json" => options.is_json = true,
            "--rank0" => options.rank = Some(0),
            "--rank1" => options.rank = Some(1),
            "-h" | "--help" => return Err(HELP.to_owned()),
            _ => return Err(format!("unknown argument {arg}\n\n{HELP}")),
        }
    }
    Ok(options)
}

fn list(text: &str, known: &[&str]) -> Outcome<Vec<String>> {
    let item = |item: &str| match known.contains(&item) {
        true => Ok(item.to_owned()),
        false => Err(format!("{item} is not among {}", known.join(", "))),
    };
    text.split(',').map(item).collect()
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(text) => {
            println!("{text}");
            return if text == HELP { ExitCode::SUCCESS } else { ExitCode::from(2) };
        }
    };
    let done = match options.rank {
        Some(rank) => play(&options, rank),
        None => direct(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// The library that was built with this program.
fn plugin(options: &Options) -> Outcome<PathBuf> {
    if let Some(path) = &options.plugin {
        return Ok(path.clone());
    }
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let here = exe.parent().ok_or("this program is nowhere")?;
    let places = [here.to_owned(), here.join("deps")];
    let libraries = places.iter().map(|place| place.join("libnccl_net_bowline.so"));
    let found = libraries.into_iter().find(|library| library.exists());
    found.ok_or_else(|| "no libnccl_net_bowline.so here: give --plugin".to_owned())
}

/// Plays one scene as one rank.
fn play(options: &Options, number: u32) -> Outcome {
    // End a rank that hangs, whatever it waits for.
    std::thread::spawn(move || {
        std::thread::sleep(LIMIT);
        eprintln!("rank {number} hangs");
        std::process::exit(3);
    });
    let (plugin, version) = (plugin(options)?, options.versions.first().copied().unwrap_or(11));
    let name = options.scenes.first().ok_or("no scene")?;
    let (_, scene) = SCENES.into_iter().find(|(known, _)| known == name).ok_or("no such scene")?;
    let mut rank = match number {
        0 => Rank::parent(&plugin, version, options.is_full)?,
        _ => Rank::child(&plugin, version, options.is_full)?,
    };
    scene(&mut rank).map_err(|why| format!("rank {number}: {why}"))?;
    let is_killed = name.starts_with("killed");
    rank.net.finalize().map_err(|status| format!("finalize: {status}"))?;
    if is_killed { Ok(()) } else { rank.finish() }
}

/// Plays all requested scenes, each in its own processes.
fn direct(options: &Options) -> Outcome {
    let plugin = plugin(options)?;
    let or = |chosen: &[String], all: &[&str]| match chosen {
        [] => all.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>(),
        chosen => chosen.to_vec(),
    };
    let transports = or(&options.transports, &TRANSPORTS);
    let scenes = or(&options.scenes, &SCENES.map(|(name, _)| name));
    let versions = match &options.versions[..] {
        [] => vec![8, 9, 10, 11],
        chosen => chosen.to_vec(),
    };
    let (mut rows, mut failed) = (Vec::new(), 0);
    for transport in &transports {
        for version in &versions {
            for scene in &scenes {
                let start = Instant::now();
                let outcome = one(options, &plugin, transport, *version, scene);
                let seconds = start.elapsed().as_secs_f64();
                let word = if outcome.is_ok() { "PASS" } else { "FAIL" };
                let why = outcome.as_ref().err().map_or("", String::as_str);
                println!(
                    "{word}  {transport:8}  v{version:<3}  {scene:16}  {seconds:6.2} s  {why}"
                );
                failed += usize::from(outcome.is_err());
                rows.push(format!(
                    "{{\"transport\":\"{transport}\",\"version\":{version},\"scene\":\"{scene}\",\
                     \"ok\":{},\"seconds\":{seconds:.3}}}",
                    outcome.is_ok()
                ));
            }
        }
    }
    if options.is_json {
        let (passed, rows) = (rows.len() - failed, rows.join(","));
        println!("{{\"passed\":{passed},\"failed\":{failed},\"rows\":[{rows}]}}");
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} scenes failed")) }
}

/// Starts rank 0 of a scene, which starts rank 1.
fn one(
    options: &Options,
    plugin: &std::path::Path,
    transport: &str,
    version: u32,
    scene: &str,
) -> Outcome {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(exe);
    command.arg("--rank0").arg("--plugin").arg(plugin);
    command.args(["--versions", &version.to_string(), "--scenes", scene]);
    command.args(options.is_full.then_some("--full"));
    command.env("NCCL_HARNESS_RUN", std::process::id().to_string());
    command.env("BOWLINE_DEVICE", address(0)).env("BOWLINE_NCCL_TRANSPORT", transport);
    let status = command.stdin(Stdio::null()).status().map_err(|e| e.to_string())?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}
