//! How the plug-in is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Lanes have threads, and NCCL unloads plug-ins when its last communicator ends.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-bowline.so");
}
