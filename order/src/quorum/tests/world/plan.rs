//! The plans of worlds: links, disks, faults, the work of clients.

use tercel_machine::random::Random;

use super::disks::Disks;

/// The events of a world.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub nodes: u64,
    pub voters: u64,
    pub links: Links,
    pub disks: Disks,
    pub faults: Faults,
    pub deadline_us: u64,
    /// The most that a member may be silent, in deadlines.
    pub silence_deadlines: u64,
    pub window_bytes: usize,
    pub may_rot: bool,
    pub changes_members: bool,
    pub moves_lead: bool,
    /// Leaders are asked whether they still lead.
    pub asks: bool,
    /// The longest time from one round of work to the next.
    pub work_us: u64,
    pub until_us: u64,
}

/// The ways of packets.
#[derive(Debug, Clone, Copy)]
pub struct Links {
    pub loss_permille: u64,
    pub double_permille: u64,
    pub delay_us: u64,
}

/// The faults of a world, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    pub every_us: u64,
    /// In a thousand, the faults that meet the leader.
    pub of_leader_permille: u64,
    /// Processes are run late, ever later up to so many deadlines, and nothing else happens.
    pub pauses_deadlines: Option<u64>,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0x5eed);
        let nodes = 1 + random.below(5);
        let changes_members = random.below(2) == 0;
        let (delay_us, disk_us) = (*random.pick(&[100, 500, 4_000]), *random.pick(&[50, 500, 2_000]));
        // Below some round trips and syncs nobody is ever elected.
        let deadline_us = *random.pick(&[3_000, 12_000].map(|us: u64| us.max(4 * delay_us + 2 * disk_us)));
        let voters = if changes_members { 1 + random.below(nodes) } else { nodes };
        let (loss_permille, double_permille) = (*random.pick(&[0, 0, 10, 100]), *random.pick(&[0, 0, 50]));
        let every_us = *random.pick(&[1_500, 5_000, 20_000, 60_000]);
        let window_bytes = *random.pick(&[20, 400]);
        let of_leader_permille = *random.pick(&[0, 500]);
        Plan {
            seed,
            nodes,
            voters,
            links: Links { loss_permille, double_permille, delay_us },
            disks: Disks::that_take(disk_us),
            faults: Faults { every_us, of_leader_permille, pauses_deadlines: None },
            deadline_us,
            window_bytes,
            may_rot: !changes_members && random.below(3) == 0,
            silence_deadlines: *random.pick(&[1, 4, 10]),
            changes_members,
            moves_lead: true,
            asks: true,
            work_us: 1_050,
            until_us: 400_000,
        }
    }
}

impl Plan {
    /// A world of either kind.
    pub fn of_either(seed: u64) -> Plan {
        if seed.is_multiple_of(2) { Plan::of(seed / 2) } else { Plan::of_short_reigns(seed / 2) }
    }

    /// A world whose leaders end one after the other, each with entries that few members have.
    pub fn of_short_reigns(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0x5e16);
        let nodes = *random.pick(&[3, 5]);
        let every_us = *random.pick(&[4_000, 8_000, 16_000]);
        let plan = Plan { voters: nodes, changes_members: false, may_rot: false, ..Plan::of(seed) };
        let faults = Faults { every_us, of_leader_permille: 900, ..plan.faults };
        let links = Links { loss_permille: 0, ..plan.links };
        Plan { nodes, faults, window_bytes: 20, links, ..plan }
    }

    /// A world whose members lose the ends of their logs again and again, and are back before what was on its
    /// way to them has come.
    pub fn of_torn_logs(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0x707e);
        let (delay_us, disk_us) = (*random.pick(&[500, 4_000]), *random.pick(&[50, 500]));
        let changes_members = random.below(2) == 0;
        Plan {
            nodes: 3,
            voters: if changes_members { 1 + random.below(3) } else { 3 },
            links: Links { loss_permille: 0, double_permille: 50, delay_us },
            disks: Disks::that_take(disk_us),
            faults: Faults {
                every_us: *random.pick(&[1_500, 5_000]),
                of_leader_permille: 0,
                pauses_deadlines: None,
            },
            deadline_us: 4 * delay_us + 2 * disk_us,
            may_rot: true,
            changes_members,
            ..Plan::of(seed)
        }
    }

    /// A world whose disks stand still now and then, while views come and go.
    pub fn of_stalled_disks(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0x57a1);
        let plan = Plan::of_either(seed);
        let stall_us = plan.deadline_us * *random.pick(&[2, 4, 10]);
        let stall_permille = *random.pick(&[20, 100, 300]);
        let disks = Disks { stall_permille, stall_us, ..plan.disks };
        // Views come and go more often so.
        Plan { disks, silence_deadlines: 1, ..plan }
    }

    /// A world whose members end while their disks stand still, the leader mostly.
    pub fn of_crashes_amid_stalls(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0xc4a5);
        let plan = Plan::of_short_reigns(seed);
        let stall_us = plan.deadline_us * *random.pick(&[1, 2, 4]);
        let stall_permille = *random.pick(&[100, 300]);
        let disks = Disks { stall_permille, stall_us, ..plan.disks };
        let faults = Faults { of_leader_permille: 500, ..plan.faults };
        Plan { disks, faults, silence_deadlines: 1, ..plan }
    }

    /// A world in which each act of a disk takes about as long as a leader may be silent, or some times that.
    pub fn of_slow_disks(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0x510d);
        let plan = Plan::of_either(seed);
        let usual_us = plan.deadline_us * *random.pick(&[1, 2, 4]) / 2;
        let faults = Faults { every_us: plan.faults.every_us.max(20_000), ..plan.faults };
        Plan { disks: Disks { usual_us, ..plan.disks }, faults, silence_deadlines: 1, ..plan }
    }

    /// A world whose processes all go on, and are run later and later: nobody has a reason to lead instead.
    pub fn of_busy_hosts(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0xb054);
        let (nodes, deadline_us) = (*random.pick(&[3, 5]), *random.pick(&[6_000, 12_000]));
        let of_leader_permille = *random.pick(&[300, 900]);
        let every_us = deadline_us / *random.pick(&[2, 4]);
        Plan {
            faults: Faults { every_us, of_leader_permille, pauses_deadlines: Some(2) },
            deadline_us,
            silence_deadlines: 24,
            until_us: 80 * deadline_us,
            ..Plan::quiet(seed, nodes)
        }
    }

    /// A world in which nothing fails.
    pub fn quiet(seed: u64, nodes: u64) -> Plan {
        Plan {
            seed,
            nodes,
            voters: nodes,
            links: Links { loss_permille: 0, double_permille: 0, delay_us: 100 },
            disks: Disks::that_take(200),
            faults: Faults { every_us: u64::MAX / 4, of_leader_permille: 0, pauses_deadlines: None },
            deadline_us: 100_000,
            silence_deadlines: 4,
            window_bytes: 400,
            may_rot: false,
            changes_members: false,
            moves_lead: false,
            asks: true,
            work_us: 1_050,
            until_us: u64::MAX / 4,
        }
    }
}
