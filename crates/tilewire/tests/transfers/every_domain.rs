//! The suites of `sendrecv` and `collectives` again, among ranks that post to each other. There is one source, whose
//! tests ask for the transport of the place at which they run. Among ranks that share memory, the tests run where they
//! are written.
//!
//! | place | domains of four ranks |
//! |---|---|
//! | `alone` | 0, 1, 2, 3 |
//! | `halves` | 0,1 and 2,3 |
//! | `first` | 0 and 1,2,3 |
//! | `interleaved` | 0,2 and 1,3 |
//!
//! `TILEWIRE_SEED` delays and reorders posts. Tests with two ranks run at one place only, because all domains are alike
//! there. All of it takes a minute of processor time.

macro_rules! at {
    ($place:ident $is:ident: $($file:ident = $suite:ident::$written:ident { $($test:ident;)* })*) => {
        mod $place {
            $(mod $file {
                $(#[test]
                fn $test() {
                    crate::case::Place::$is.hosts(crate::$suite::$written::$test);
                })*
            })*
        }
    };
}

macro_rules! everywhere {
    ($suites:tt) => {
        everywhere! { @ alone Alone $suites }
        everywhere! { @ halves Halves $suites }
        everywhere! { @ first First $suites }
        everywhere! { @ interleaved Interleaved $suites }
    };
    (@ $place:ident $is:ident { $($suites:tt)* }) => {
        at! { $place $is: $($suites)* }
    };
}

at! {
    two_ranks Alone:
    copies = sendrecv::copies {
        every_type_in_every_small_count_goes_every_way;
        a_kibibyte_to_many_mebibytes_go_every_way;
        one_to_eight_blocks_share_tiles_that_they_do_not_divide;
        a_pair_sends_both_ways_without_sendrecv;
        what_is_chosen_fits_every_transport;
    }
    hooks_of_legs = sendrecv::hooks {
        large_chunks_arrive_transposed_in_tiles;
        one_side_may_pack_elements_that_the_other_copies_in_words;
        a_produce_hook_gathers_by_an_index;
    }
    guards = sendrecv::guards {
        elements_around_the_output_are_untouched;
        bytes_behind_a_window_are_untouched;
    }
    sequences = sendrecv::sequences {
        a_thousand_launches_through_staging_need_no_reset;
        a_deep_pipeline_drains_before_its_slots_become_others;
        a_thousand_launches_in_packets_need_no_reset;
        a_thousand_launches_into_windows_need_no_reset;
        a_fast_sender_never_overwrites_a_window_that_is_still_read;
    }
    in_place = collectives::in_place {
        what_would_overwrite_what_is_still_to_be_sent_is_refused;
        a_reduction_whose_hooks_read_what_others_write_is_refused_in_place;
    }
    strided = collectives::strided {
        hooks_of_rectangles_have_rows_and_columns_without_being_told;
        one_side_may_be_strided_and_both_must_say_the_same_shape;
        what_cannot_be_cut_or_written_is_refused_with_the_remedy;
    }
    failures = collectives::failures {
        a_thread_that_leaves_is_not_waited_for;
        what_a_thread_sent_before_it_left_arrives;
    }
}

// These take seconds each, so they run at one place, where all ranks have near and far peers.
at! {
    near_and_far Interleaved:
    fields = collectives::fields {
        fields_that_say_what_a_value_is_mean_the_same_in_every_algorithm_protocol_and_size;
    }
    exchanges = collectives::exchanges {
        every_protocol_and_both_layouts_carry_every_exchange;
        a_mebibyte_for_every_peer;
        large_chunks_are_sent_and_kept_in_turns;
    }
}

everywhere! {{
    copies = sendrecv::copies {
        rings_of_two_to_eight_ranks_shift_by_every_distance;
        a_block_goes_more_than_128_steps;
        a_message_goes_from_rank_to_rank_by_send_and_recv;
        every_leg_of_a_ring_may_have_a_length_of_its_own;
        a_seeded_sample_of_everything;
    }
    guards = sendrecv::guards {
        windows_of_others_are_untouched;
        bytes_behind_a_window_that_is_shorter_than_others_are_untouched;
    }
    sequences = sendrecv::sequences {
        sizes_slots_depths_protocols_and_blocks_alternate_on_one_transport;
        any_pair_exchanges_while_the_others_do_something_else;
        two_transports_are_used_in_turns;
        ranks_that_come_at_any_time_get_the_same;
    }
    hooks_of_legs = sendrecv::hooks {
        a_produce_hook_scales;
        a_consume_hook_scales;
        both_hooks_share_the_work_of_a_narrower_wire;
        payload_and_scale_travel_side_by_side;
        three_parts_of_different_types_travel_side_by_side;
        chunks_arrive_transposed_by_the_sender;
        chunks_arrive_transposed_by_the_receiver;
        a_consume_hook_accumulates;
        hooks_know_where_they_are;
    }
    exchanges = collectives::exchanges {
        every_exchange_is_right_in_worlds_of_every_size;
        a_hundred_and_fifty_launches_of_alternating_exchanges;
        nobody_leaves_a_barrier_before_all_have_come;
    }
    hooks = collectives::hooks {
        a_produce_hook_scales;
        every_chunk_arrives_transposed;
        payload_and_scale_travel_side_by_side;
        a_hook_knows_peers_shard_and_block;
        a_consume_hook_adds_to_what_is_there;
        chunks_may_change_their_length_and_type_on_the_way;
    }
    in_place = collectives::in_place {
        the_input_may_be_the_part_of_the_output_that_it_becomes;
        the_root_of_a_broadcast_a_gather_and_a_scatter_may_be_in_place;
        a_reduction_whose_hooks_stay_at_their_position_may_be_in_place;
    }
    reductions = collectives::reductions {
        every_reduction_is_right_in_worlds_of_every_size;
        every_op_and_every_algorithm_has_the_same_bits;
        an_average_of_integers_does_not_wrap_on_its_way;
        hooks_see_positions_of_the_whole_tensor_and_their_shard_in_every_algorithm;
        a_produce_hook_makes_what_is_reduced_of_something_else;
        through_windows_a_reduce_scatter_has_a_consume_hook_and_alternates_with_what_is_sent_into_them;
    }
    rings = collectives::rings {
        a_ring_gathers_every_bit;
        two_values_go_round_side_by_side;
        a_ring_gathers_in_place;
        hooks_run_where_a_chunk_begins_and_wherever_it_is_kept;
    }
    strided = collectives::strided {
        random_rectangles_arrive_as_plain_loops_say_and_nothing_else_is_written;
        in_place_along_columns;
    }
    failures = collectives::failures {
        who_waits_for_a_rank_that_does_not_run_names_it;
        a_rank_that_never_builds_is_named;
        what_is_built_and_dropped_breaks_the_transport_for_all;
        an_error_of_one_ranks_build_ends_the_others_long_before_their_deadline;
        an_error_that_all_ranks_get_alike_leaves_the_link_as_it_was;
    }
}}
