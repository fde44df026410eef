//! The plans of worlds: links, disks, faults, the work of clients.

use tercel_machine::random::Random;

use super::disks::Disks;

/// The events of a world.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub nodes: u64,
    pub voters: u64,
    pub loss_permille: u64,
    pub double_permille: u64,
    pub delay_us: u64,
    pub disks: Disks,
    pub fault_every_us: u64,
    pub deadline_us: u64,
    pub window_bytes: usize,
    /// In a thousand, the faults that meet the leader.
    pub of_leader_permille: u64,
    pub may_rot: bool,
    pub changes_members: bool,
    pub moves_lead: bool,
    /// Leaders are asked whether they still lead.
    pub asks: bool,
    /// The longest time from one round of work to the next.
    pub work_us: u64,
    pub until_us: u64,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0x5eed);
        let nodes = 1 + random.below(5);
        let changes_members = random.below(2) == 0;
        let (delay_us, disk_us) = (*random.pick(&[100, 500, 4_000]), *random.pick(&[50, 500, 2_000]));
        // Below some round trips and syncs nobody is ever elected.
        let deadline_us = *random.pick(&[3_000, 12_000].map(|us: u64| us.max(4 * delay_us + 2 * disk_us)));
        Plan {
            seed,
            nodes,
            voters: if changes_members { 1 + random.below(nodes) } else { nodes },
            loss_permille: *random.pick(&[0, 0, 10, 100]),
            double_permille: *random.pick(&[0, 0, 50]),
            delay_us,
            disks: Disks::that_take(disk_us),
            fault_every_us: *random.pick(&[1_500, 5_000, 20_000, 60_000]),
            deadline_us,
            window_bytes: *random.pick(&[20, 400]),
            of_leader_permille: *random.pick(&[0, 500]),
            may_rot: !changes_members && random.below(3) == 0,
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
        let fault_every_us = *random.pick(&[4_000, 8_000, 16_000]);
        let (window_bytes, of_leader_permille) = (20, 900);
        let plan = Plan { voters: nodes, changes_members: false, may_rot: false, ..Plan::of(seed) };
        Plan { nodes, fault_every_us, window_bytes, of_leader_permille, loss_permille: 0, ..plan }
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
            loss_permille: 0,
            double_permille: 50,
            delay_us,
            disks: Disks::that_take(disk_us),
            fault_every_us: *random.pick(&[1_500, 5_000]),
            deadline_us: 4 * delay_us + 2 * disk_us,
            of_leader_permille: 0,
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
        Plan { disks: Disks { stall_permille, stall_us, ..plan.disks }, ..plan }
    }

    /// A world whose members end while their disks stand still, the leader mostly.
    pub fn of_crashes_amid_stalls(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0xc4a5);
        let plan = Plan::of_short_reigns(seed);
        let stall_us = plan.deadline_us * *random.pick(&[1, 2, 4]);
        let stall_permille = *random.pick(&[100, 300]);
        let disks = Disks { stall_permille, stall_us, ..plan.disks };
        Plan { disks, of_leader_permille: 500, ..plan }
    }

    /// A world in which each act of a disk takes about as long as a leader may be silent, or some times that.
    pub fn of_slow_disks(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0x510d);
        let plan = Plan::of_either(seed);
        let usual_us = plan.deadline_us * *random.pick(&[1, 2, 4]) / 2;
        let fault_every_us = plan.fault_every_us.max(20_000);
        Plan { disks: Disks { usual_us, ..plan.disks }, fault_every_us, ..plan }
    }

    /// A world in which nothing fails.
    pub fn quiet(seed: u64, nodes: u64) -> Plan {
        Plan {
            seed,
            nodes,
            voters: nodes,
            loss_permille: 0,
            double_permille: 0,
            delay_us: 100,
            disks: Disks::that_take(200),
            fault_every_us: u64::MAX / 4,
            deadline_us: 100_000,
            window_bytes: 400,
            of_leader_permille: 0,
            may_rot: false,
            changes_members: false,
            moves_lead: false,
            asks: true,
            work_us: 1_050,
            until_us: u64::MAX / 4,
        }
    }
}
