//! Three replicas of `rescind fixture` as one server: sessions, cancels and faults, on a list of nodes, Redis and NATS.
//!
//! `RESCIND_REDIS_SERVER` and `RESCIND_NATS_SERVER` name the programs of the engines. The tests of an engine without its
//! variable are skipped, as are those of wrong clocks without `RESCIND_FAKETIME`, the file `libfaketime.so.1`. `RESCIND_CLUSTER_FULL=1` runs the long forms.
//!
//! `cargo test -p rescind-cli --test processes cluster::redis` runs the tests with Redis.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

mod bulk;
mod client;
mod engine_faults;
mod faults;
mod measures;
mod nodes;
mod operation;
mod sessionless;
mod sessions;
mod tasks;
mod trial;

use std::env;

use libtest_mimic::Trial;

use self::nodes::Backend;
use self::trial::trials_of;

/// The tests of every kind of cluster.
fn of_each(backend: Backend) -> Vec<Trial> {
    trials_of! {
        backend;
        sessions: sessions_work_from_every_replica,
            acp_connections_work_from_every_replica,
            a_cancel_through_another_replica_reaches_its_request,
            a_stream_is_resumed_through_another_replica,
            an_acp_stream_is_resumed_through_another_replica,
            a_session_of_another_principal_is_unknown_on_every_replica,
            a_second_node_of_the_same_name_does_not_start;
        sessionless: a_cancel_finds_its_request_without_a_session,
            a_cancel_of_another_principal_has_no_effect,
            an_early_cancel_finds_its_request_without_a_session,
            a_late_cancel_is_forgotten_without_a_session;
        tasks: a_task_is_reached_through_every_replica,
            a_task_is_cancelled_from_a_session_at_another_node,
            a_long_result_of_a_task_is_given_at_another_node,
            the_tasks_of_all_nodes_are_listed_at_each,
            a_task_of_a_dead_replica_is_no_hang;
        sessions: a_forwarded_request_is_never_forwarded_again,
            a_hop_that_is_not_signed_for_this_node_is_refused,
            an_id_that_this_cluster_did_not_sign_is_unknown;
        faults: a_killed_node_loses_its_sessions_and_nothing_else,
            a_stopped_node_hangs_nobody_and_comes_back,
            a_restarted_node_does_not_answer_for_its_former_life,
            a_node_that_leaves_is_gone_at_once;
        faults: a_partition_between_nodes_hangs_nobody,
            a_request_whose_answer_is_lost_runs_once,
            a_node_with_another_address_is_found;
        operation: a_rolling_restart_loses_no_request,
            a_request_that_outlives_the_drain_is_told_so,
            a_node_is_not_ready_before_it_drains;
        measures: a_cancel_reaches_another_member_within_its_budget,
            a_forwarded_echo_is_within_its_budget,
            a_cancel_of_a_task_at_another_node_stops_it_and_is_measured;
        bulk: each_of_many_sessions_is_reached_through_every_node;
        bulk: each_cancel_in_bulk_reaches_exactly_its_request;
        operation: an_operator_cancels_a_request,
            an_operator_cancels_a_request_of_acp,
            a_wrong_secret_or_key_cancels_nothing,
            a_cancel_for_a_dead_node_says_so;
    }
}

/// The tests of clusters with wrong clocks, which need a library.
fn of_wrong_clocks(backend: Backend) -> Vec<Trial> {
    let there = env::var_os(faults::VARIABLE).is_some();
    let trials = trials_of! {
        backend;
        faults: a_wrong_clock_has_no_effect;
    };
    trials.into_iter().map(|trial| if there { trial } else { trial.with_ignored_flag(true) }).collect()
}

/// The tests of clusters on a list of nodes.
fn of_list() -> Vec<Trial> {
    trials_of! {
        Backend::List;
        sessions: a_client_that_leaves_the_entry_node_leaves_the_owner,
            a_request_is_forwarded_as_it_is;
    }
}

/// The tests of clusters with an engine.
fn of_engines(backend: Backend) -> Vec<Trial> {
    trials_of! {
        backend;
        engine_faults: a_restarted_engine_loses_nothing_that_runs,
            a_stopped_engine_stops_no_session,
            a_slow_engine_slows_cancels_only,
            a_full_engine_is_no_silent_success,
            a_node_without_its_engine_still_serves;
        tasks: a_task_needs_no_engine_while_its_replica_lives,
            an_outage_of_the_engine_loses_no_task,
            the_tasks_of_a_dead_node_are_listed,
            a_full_engine_keeps_no_task_and_stops_none,
            a_cancel_of_a_task_waits_for_its_stopped_node;
        sessionless: a_cancel_without_the_engine_is_no_silent_success;
        sessionless: a_worker_stops_with_its_request,
            a_worker_that_begins_late_stops_at_once,
            a_killed_worker_loses_its_job_and_hangs_nobody,
            a_worker_gives_its_jobs_back_at_sigterm;
    }
}

/// The tests of clusters with Redis.
fn of_redis() -> Vec<Trial> {
    trials_of! {
        Backend::Redis;
        engine_faults: a_restarted_engine_that_forgot_loses_no_session,
            a_foreign_entry_is_not_followed;
        tasks: an_engine_that_forgot_loses_no_task;
    }
}

/// All trials.
pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for backend in [Backend::List, Backend::Redis, Backend::Nats] {
        if let (false, Some(variable)) = (backend.is_there(), backend.variable()) {
            trial::tell(&format!(
                "SKIPPED: the tests of a cluster on {}, because {variable} is not set",
                backend.name()
            ));
        }
        trials.extend(of_each(backend));
        trials.extend(of_wrong_clocks(backend));
        trials.extend(match backend {
            Backend::List => of_list(),
            Backend::Redis => of_engines(backend).into_iter().chain(of_redis()).collect(),
            Backend::Nats => of_engines(backend),
        });
    }
    if env::var_os(faults::VARIABLE).is_none() {
        trial::tell(&format!("SKIPPED: the tests of wrong clocks, because {} is not set", faults::VARIABLE));
    }
    trials.push(Trial::test("cluster::facts::no_code_of_the_cluster_asks_for_the_time_of_day", || {
        trial::no_code_of_the_cluster_asks_for_the_time_of_day()
    }));
    let names: Vec<String> = trials.iter().map(|trial| trial.name().to_owned()).collect();
    trials.push(Trial::test("cluster::facts::the_table_of_faults_names_tests_that_exist", move || {
        trial::the_table_of_faults_names_tests_that_exist(&names)
    }));
    trials
}
