//! Prints design/job-states.md: the states of a Job and the moves between them, as the code has them.

fn main() {
    print!("{}", berth_controllers::job::machine::drawing());
}
