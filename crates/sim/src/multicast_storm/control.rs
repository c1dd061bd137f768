//! The control plane: which switch has which tables.

use core::net::IpAddr;
use std::cell::RefCell;
use std::rc::Rc;

use bowline_multicast::plan::{GroupSpec, bifurcate, tables, unreliable_tables};
use bowline_multicast::{Branch, Counters, Event, InvalidTable, Switch, SwitchLimits, Table};

use crate::net::{Ecmp, IpMulticast, Multicast, NodeId, Routed, Routing};
use crate::world::World;

/// A switch, as its controller sees it.
struct Managed {
    node: NodeId,
    engine: Rc<RefCell<Switch>>,
    /// It has not lost its tables, or has them again.
    is_up: bool,
}

/// The controller of all switches.
pub(crate) struct Control {
    switches: Vec<Managed>,
    ip: Rc<RefCell<IpMulticast>>,
    /// The counters of switches that have lost their state, as of then.
    counted: Counters,
}

impl Control {
    /// Turns every switch of a world into one that replicates and merges.
    pub(crate) fn new(world: &mut World, ecmp: bool) -> Control {
        let network = world.network_mut();
        let ip = Rc::<RefCell<IpMulticast>>::default();
        let switches: Vec<Managed> = network
            .switches()
            .into_iter()
            .map(|node| {
                let engine = Rc::new(RefCell::new(Switch::new(SwitchLimits::default())));
                Managed { node, engine, is_up: true }
            })
            .collect();
        for switch in &switches {
            let (engine, ip) = (Rc::clone(&switch.engine), Rc::clone(&ip));
            if ecmp {
                let forwarding = Multicast::new(engine, ip, Ecmp::by_flow());
                network.set_switch(switch.node, Box::new(forwarding));
            } else {
                network.set_switch(switch.node, Box::new(Multicast::new(engine, ip, Routing)));
            }
        }
        Control { switches, ip, counted: Counters::default() }
    }

    /// Gives all switches the tables of a group, the root first. Switches that are down get theirs
    /// later. If one switch has all members, it uses the multicast address `trunk`.
    ///
    /// # Errors
    /// If the root rejects its table; then nothing has changed.
    pub(crate) fn install(
        &self,
        world: &World,
        sender: NodeId,
        group: &GroupSpec,
        trunk: Option<IpAddr>,
    ) -> Result<(), InvalidTable> {
        let addrs: Vec<_> = group.members.iter().map(|member| member.addr).collect();
        let network = Routed(world.network());
        let plan = bifurcate(&network, sender, &addrs).expect("all hosts are reachable");
        let mut tables = tables(&plan, group);
        if let Some(trunk) = trunk
            && tables.len() == 1
        {
            tables.values_mut().for_each(|table| add_trunk(table, trunk));
        }
        let now = world.now();
        let root = self.switches.iter().filter(|switch| switch.node == plan.root);
        let others = self.switches.iter().filter(|switch| switch.node != plan.root);
        for switch in root.chain(others).filter(|switch| switch.is_up) {
            let mut engine = switch.engine.borrow_mut();
            match tables.remove(&switch.node) {
                Some(table) => engine.install(now, table)?,
                None => engine.remove(&group.key),
            }
        }
        Ok(())
    }

    /// Gives all switches the tables of a group of UC queue pairs, which are not acknowledged.
    pub(crate) fn install_unreliable(&self, world: &World, sender: NodeId, group: &GroupSpec) {
        let addrs: Vec<_> = group.members.iter().map(|member| member.addr).collect();
        let network = Routed(world.network());
        let plan = bifurcate(&network, sender, &addrs).expect("all hosts are reachable");
        let mut tables = unreliable_tables(&plan, group);
        for switch in &self.switches {
            if let Some(table) = tables.remove(&switch.node) {
                switch.engine.borrow_mut().install(world.now(), table).expect("a right table");
            }
        }
    }

    /// A multicast address reaches nobody from now on.
    pub(super) fn lose(&self, trunk: IpAddr) {
        self.ip.borrow_mut().lost.insert(trunk);
    }

    /// Packets to multicast addresses.
    pub(super) fn by_ip_multicast(&self) -> u64 {
        self.ip.borrow().sent
    }

    /// A switch loses all its state. Returns its pending events.
    pub(super) fn restart(&mut self, switch: usize) -> Vec<Event> {
        let index = switch % self.switches.len();
        let events = drain(&self.switches[index].engine);
        let switch = &mut self.switches[index];
        let lost = switch.engine.replace(Switch::new(SwitchLimits::default()));
        self.counted.merge(lost.counters());
        switch.is_up = false;
        events
    }

    /// A switch is up again, still without tables.
    pub(super) fn bring_up(&mut self, switch: usize) {
        let index = switch % self.switches.len();
        self.switches[index].is_up = true;
    }

    /// Pending events of all switches.
    pub(super) fn events(&self) -> Vec<Event> {
        self.switches.iter().flat_map(|switch| drain(&switch.engine)).collect()
    }

    /// What all switches have counted.
    pub(super) fn counters(&self) -> Counters {
        let mut all = self.counted;
        for switch in &self.switches {
            all.merge(switch.engine.borrow().counters());
        }
        all
    }
}

fn add_trunk(table: &mut Table, dst: IpAddr) {
    if let Some(root) = &mut table.root {
        root.trunk = Some(table.branches.len());
        table.branches.push(Branch { dst, src: None, leaf: None });
    }
}

fn drain(engine: &RefCell<Switch>) -> Vec<Event> {
    let mut engine = engine.borrow_mut();
    std::iter::from_fn(|| engine.poll_event()).collect()
}
