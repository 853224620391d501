//! What became of the calls of a program: which are gone, which moved, and which compiled call was which.

use super::audit;
use super::build::{Computation, floats, handle, tuple, unknown_condition};
use crate::hlo::proto::OpMetadata;
use crate::{Audit, Lost, Moved, counterparts, lost, moved};

#[test]
fn merged_and_dropped_calls_are_told_apart() {
    let build = |calls: usize| {
        let mut main = Computation::new("main", 1);
        let h = main.parameter(0, handle());
        let g = main.parameter(1, handle());
        if calls > 2 {
            main.read("unused", &[g]);
            main.last().metadata.as_mut().expect("set").source_line = 3;
        }
        for number in 1..calls {
            main.read(&format!("r{number}"), &[h]);
        }
        audit(vec![main])
    };
    let (before, after) = (build(3), build(2));
    let gone = |call, merged_with| Lost { call, merged_with, never_runs: false };
    assert_eq!(lost(&before, &after), [gone(0, None), gone(2, Some(1))]);
    assert_eq!(lost(&after, &after), []);
}

/// Says from which line the last instruction comes.
fn at_line(computation: &mut Computation, line: i32) {
    let metadata = OpMetadata { source_file: "user.py".into(), source_line: line, ..OpMetadata::default() };
    computation.last().metadata = Some(metadata);
}

/// A function that reads at the line 1, called from each of these lines, and a read at each of the others.
fn called_from(lines: &[i32], reads_at: &[i32]) -> Audit {
    let mut callee = Computation::new("callee", 1);
    let h = callee.parameter(0, handle());
    callee.read("inside", &[h]);
    let mut main = Computation::new("main", 2);
    let h = main.parameter(0, handle());
    for &line in lines {
        main.calling("call", "call", floats(&[8]), &[h], &[1]);
        at_line(&mut main, line);
    }
    for &line in reads_at {
        main.read("outside", &[h]);
        at_line(&mut main, line);
    }
    audit(vec![callee, main])
}

#[test]
fn calls_from_two_lines_are_not_mistaken_for_each_other() {
    let before = called_from(&[10, 20], &[30]);
    assert_eq!(counterparts(&before, &before), [Some(0), Some(1), Some(2)]);
    assert_eq!(counterparts(&before, &called_from(&[20, 10], &[])), [Some(1), Some(0)]);
    assert_eq!(counterparts(&before, &called_from(&[20], &[30])), [Some(1), Some(2)]);
}

#[test]
fn a_call_whose_stack_was_cut_is_matched_by_its_innermost_line() {
    let before = called_from(&[10, 20], &[30]);
    assert_eq!(counterparts(&before, &called_from(&[20], &[1])), [Some(1), Some(0)]);
    assert_eq!(counterparts(&before, &called_from(&[], &[1, 1])), [Some(0), Some(1)]);
    // A line that no call comes from.
    assert_eq!(counterparts(&before, &called_from(&[], &[40])), [None]);
}

#[test]
fn each_of_the_calls_that_a_loop_was_unrolled_to_is_that_of_the_loop() {
    let before = called_from(&[10], &[30]);
    let after = called_from(&[10, 10, 10], &[30, 30]);
    assert_eq!(counterparts(&before, &after), [Some(0), Some(0), Some(0), Some(1), Some(1)]);
}

#[test]
fn a_call_of_another_target_is_no_counterpart() {
    let mut main = Computation::new("main", 1);
    let h = main.parameter(0, handle());
    main.write("w", &[h]);
    at_line(&mut main, 30);
    assert_eq!(counterparts(&called_from(&[], &[30]), &audit(vec![main])), [None]);
}

/// Nested loops, one from each of these lines, the outermost first, and a read at the line 1 inside of so many of them.
fn read_in_loops(lines: &[i32], depth: usize) -> Audit {
    let carried = tuple(&[handle(), floats(&[8])]);
    let condition = unknown_condition(100, &carried);
    let mut done = vec![condition];
    let mut inner: Option<i64> = None;
    // From the innermost computation outwards.
    for level in (0..=lines.len()).rev() {
        let id = i64::try_from(level).expect("small") + 1;
        let mut here = Computation::new("level", id);
        let state = here.parameter(0, carried.clone());
        let (h, value) = (here.element(state, 0), here.element(state, 1));
        let value = if level == depth { here.read("r", &[h]) } else { value };
        let mut result = here.tuple(&[h, value]);
        if let Some(body) = inner {
            result = here.calling("loop", "while", carried.clone(), &[result], &[body, 100]);
            at_line(&mut here, lines[level]);
            here.last().metadata.as_mut().expect("set").op_name = format!("loop {level}");
        }
        here.proto.root_id = result;
        inner = Some(id);
        done.push(here);
    }
    audit(done)
}

#[test]
fn a_call_that_was_taken_out_of_a_loop_is_not_said_to_run_in_it() {
    let lines_of = |moved: &[Moved]| -> Vec<(usize, usize, Vec<u32>)> {
        moved.iter().map(|one| (one.call, one.to, one.out_of.iter().map(|source| source.line).collect())).collect()
    };
    // Of the innermost loop that it is not in any more, with the lines around it.
    let before = read_in_loops(&[10, 20], 2);
    assert_eq!(
        lines_of(&moved(&before, &read_in_loops(&[10, 20], 1))),
        [(0, 0, vec![20, 10])],
        "out of the inner loop"
    );
    assert_eq!(lines_of(&moved(&before, &read_in_loops(&[10, 20], 0))), [(0, 0, vec![20, 10])], "out of both");
    assert_eq!(lines_of(&moved(&before, &before)), []);
    // The inner loop is gone: it was unrolled, or runs once.
    assert_eq!(lines_of(&moved(&before, &read_in_loops(&[10], 1))), []);
    // It is gone, and the call is out of the other one too.
    assert_eq!(lines_of(&moved(&before, &read_in_loops(&[10], 0))), [(0, 0, vec![10])]);
    assert_eq!(lines_of(&moved(&read_in_loops(&[10, 20], 1), &before)), [], "into a loop");
}
