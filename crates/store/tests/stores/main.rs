//! One set of checks for all kinds of stores.
//!
//! Those of the directory need nothing and always run. Those of Redis and etcd need servers:
//! `lab/store/run` starts them and names them in `BOWLINE_STORE_REDIS` and `BOWLINE_STORE_ETCD`.

mod checks;
mod process;
mod restart;

macro_rules! check {
    ($name:ident, $place:expr $(, #[$attr:meta])*) => {
        #[test]
        $(#[$attr])*
        fn $name() {
            crate::checks::$name(&$place);
        }
    };
}

macro_rules! suite {
    ($place:expr $(, #[$attr:meta])*) => {
        check!(what_is_put_can_be_got_replaced_and_removed, $place $(, #[$attr])*);
        check!(jobs_do_not_see_each_other, $place $(, #[$attr])*);
        check!(entries_expire_unless_refreshed, $place $(, #[$attr])*);
        check!(another_process_sees_what_is_put, $place $(, #[$attr])*);
        check!(a_key_of_another_live_process_is_taken_until_it_ends, $place $(, #[$attr])*);
        check!(a_race_for_a_key_has_one_winner, $place $(, #[$attr])*);
    };
}

mod file {
    suite!(crate::checks::Place::dir());
}

mod redis {
    suite!(crate::checks::Place::server("BOWLINE_STORE_REDIS"), #[ignore = "see lab/store/run"]);

    #[test]
    #[ignore = "see lab/store/run"]
    fn a_restart_is_survived() {
        crate::restart::is_survived(crate::restart::Server::redis());
    }
}

mod etcd {
    suite!(crate::checks::Place::server("BOWLINE_STORE_ETCD"), #[ignore = "see lab/store/run"]);

    #[test]
    #[ignore = "see lab/store/run"]
    fn a_restart_is_survived() {
        crate::restart::is_survived(crate::restart::Server::etcd());
    }
}

/// Not a check: what [`process::Other`] runs in a separate process.
#[test]
fn other_process() {
    process::obey_if_asked();
}
