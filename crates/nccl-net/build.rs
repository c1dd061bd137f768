//! Linker options of the plug-in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Never unload the library: lanes have threads, and NCCL unloads plug-ins when its last
    // communicator ends.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-bowline.so");
}
