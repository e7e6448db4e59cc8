//! Passes the version of the `iceberg` crate from the lock file.

fn main() {
    println!("cargo:rerun-if-changed=Cargo.lock");
    let lock = std::fs::read_to_string("Cargo.lock").expect("Cargo.lock");
    let (_, after) = lock.split_once("name = \"iceberg\"\nversion = \"").expect("iceberg");
    println!("cargo:rustc-env=ICEBERG_VERSION={}", after.split('"').next().expect("a version"));
}
