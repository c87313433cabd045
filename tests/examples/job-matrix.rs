//! Prints design/job-states-opensandbox.md: the state matrix of Jobs through the OpenSandbox adapter.

fn main() {
    print!("{}", berth_tests::job_matrix::page());
}
