//! Which objects native calls touch, and which of them may be one.

mod access;
mod arguments;
mod roots;

use std::collections::HashMap;

pub(crate) use access::is_python;
pub use access::{Access, Calls, Object};
pub(crate) use arguments::Arguments;

use crate::error::Error;
use crate::graph::{Dependence, Node};
use crate::hlo::{Instruction, Module, attribute};
use roots::{ANYTHING, Known, Roots};

/// The objects that a call reads and writes, by their positions in [`Objects`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Touched {
    pub(crate) reads: Vec<u32>,
    pub(crate) writes: Vec<u32>,
}

impl Touched {
    /// All that it touches.
    pub(crate) fn objects(&self) -> impl Iterator<Item = u32> {
        self.reads.iter().chain(&self.writes).copied()
    }

    pub(crate) fn is_something(&self) -> bool {
        !self.reads.is_empty() || !self.writes.is_empty()
    }
}

/// All objects that the calls of a program touch.
pub(crate) struct Objects {
    roots: Roots,
    resources: Vec<Option<String>>,
    /// Of each object, its resource and its root.
    list: Vec<(u32, u32)>,
    ids: HashMap<(u32, u32), u32>,
}

/// The objects of one resource.
#[derive(Default)]
struct Group {
    /// Those that may be one with objects of any kind.
    wide: Vec<u32>,
    /// The others, by what they must have in common to be one.
    by_base: HashMap<u32, Vec<u32>>,
}

/// An object of a call before its handle is followed.
enum Named {
    Root(u32),
    Held(Node),
}

impl Objects {
    /// What each of the nodes, which are native calls, touches. `accesses` says which of the list are of an instruction.
    pub(crate) fn find<'a>(
        module: &Module,
        dependence: &Dependence,
        arguments: &Arguments,
        nodes: &[Node],
        accesses: &dyn Fn(&Instruction) -> Vec<&'a Access>,
        is_entangle: &dyn Fn(&Instruction) -> bool,
    ) -> Result<(Self, Vec<Touched>), Error> {
        let handles = |instruction: &Instruction| -> Vec<usize> {
            if is_entangle(instruction) {
                return instruction.aliases.iter().map(|&(_, operand)| operand).collect();
            }
            let objects = accesses(instruction).into_iter().map(|access| access.object_of(instruction));
            objects
                .flat_map(|object| if let Object::Operands(operands) = object { operands } else { Vec::new() })
                .collect()
        };
        let known = Known { handles: &handles, arguments };
        let held: Vec<Vec<(&Access, Object)>> = nodes
            .iter()
            .map(|&node| {
                let instruction = dependence.instruction(module, node);
                accesses(instruction).into_iter().map(|access| (access, access.object_of(instruction))).collect()
            })
            .collect();
        let operands = |node: Node, wanted: &[usize]| -> Vec<Node> {
            let all = dependence.operands(node).into_iter();
            all.filter(|(number, _)| wanted.contains(number)).map(|(_, node)| node).collect()
        };
        let wanted = nodes.iter().zip(&held).flat_map(|(&node, held)| {
            held.iter().flat_map(move |(_, object)| match object {
                Object::Operands(numbers) => operands(node, numbers),
                _ => Vec::new(),
            })
        });
        let (roots, sets) = Roots::find(module, dependence, &known, wanted);
        let mut objects = Self { roots, resources: Vec::new(), list: Vec::new(), ids: HashMap::new() };
        let mut touched = Vec::with_capacity(nodes.len());
        for (&node, held) in nodes.iter().zip(&held) {
            let instruction = dependence.instruction(module, node);
            let mut of_call = Touched::default();
            for (access, object) in held {
                let named: Vec<Named> = match object {
                    Object::Default | Object::Whole => vec![Named::Root(ANYTHING)],
                    Object::Operands(numbers) => {
                        if let Some(&operand) = numbers.iter().find(|&&number| number >= instruction.operands.len()) {
                            return Err(no_such_operand(instruction, operand));
                        }
                        operands(node, numbers).into_iter().map(Named::Held).collect()
                    }
                    Object::Attribute(name) => {
                        let value = attribute(&instruction.attributes, name);
                        let value = value.ok_or_else(|| no_such_attribute(instruction, name))?;
                        vec![Named::Root(objects.roots.attribute(name, value))]
                    }
                };
                let list = if access.writes { &mut of_call.writes } else { &mut of_call.reads };
                let resource = objects.resource(access.resource.as_deref());
                for named in named {
                    match named {
                        Named::Root(root) => list.push(objects.id(resource, root)),
                        Named::Held(node) => {
                            list.extend(sets.get(&node).into_iter().flatten().map(|&root| objects.id(resource, root)));
                        }
                    }
                }
            }
            for list in [&mut of_call.reads, &mut of_call.writes] {
                list.sort_unstable();
                list.dedup();
            }
            touched.push(of_call);
        }
        Ok((objects, touched))
    }

    fn resource(&mut self, name: Option<&str>) -> u32 {
        let position = self.resources.iter().position(|known| known.as_deref() == name).unwrap_or_else(|| {
            self.resources.push(name.map(str::to_owned));
            self.resources.len() - 1
        });
        u32::try_from(position).expect("resources are few")
    }

    fn id(&mut self, resource: u32, root: u32) -> u32 {
        let next = u32::try_from(self.list.len()).expect("objects are fewer than nodes");
        let id = *self.ids.entry((resource, root)).or_insert(next);
        if id == next {
            self.list.push((resource, root));
        }
        id
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn name(&self, object: u32) -> String {
        let (resource, root) = self.list[object as usize];
        match &self.resources[resource as usize] {
            None => self.roots.name(root).to_owned(),
            Some(name) if root == ANYTHING => name.clone(),
            Some(name) => format!("{name}, {}", self.roots.name(root)),
        }
    }

    /// Whether two objects may be one.
    pub(crate) fn may_be_same(&self, a: u32, b: u32) -> bool {
        let ((resource_a, a), (resource_b, b)) = (self.list[a as usize], self.list[b as usize]);
        resource_a == resource_b && self.roots.overlap(a, b)
    }

    /// What stands for both of two objects that may be one: the less precise of the two, such as an array rather than its element.
    pub(crate) fn less_precise(&self, a: u32, b: u32) -> u32 {
        if self.list[a as usize].1 <= self.list[b as usize].1 { a } else { b }
    }

    /// For every object, those that may be the same, itself among them.
    pub(crate) fn overlapping(&self) -> Vec<Vec<u32>> {
        let mut groups: HashMap<u32, Group> = HashMap::new();
        for (object, &(resource, root)) in (0..).zip(&self.list) {
            let group = groups.entry(resource).or_default();
            match self.roots.base(root) {
                None => group.wide.push(object),
                Some(base) => group.by_base.entry(base).or_default().push(object),
            }
        }
        let mut overlapping: Vec<Vec<u32>> = (0..).take(self.list.len()).map(|object| vec![object]).collect();
        let mut note = |a: u32, b: u32| {
            overlapping[a as usize].push(b);
            overlapping[b as usize].push(a);
        };
        for Group { wide, by_base } in groups.into_values() {
            for (position, &a) in wide.iter().enumerate() {
                let narrow = by_base.values().flatten();
                let others = wide[position + 1..].iter().filter(|&&b| self.may_be_same(a, b));
                narrow.chain(others).for_each(|&b| note(a, b));
            }
            for group in by_base.into_values() {
                self.overlapping_in(&group, &mut note);
            }
        }
        overlapping
    }

    /// Sorted by where they start, a part is compared only with those that start before it ends, and a constant with those whose values
    /// reach into its own. Places in arrays of different lengths cannot be compared: then each is with each.
    fn overlapping_in(&self, group: &[u32], note: &mut impl FnMut(u32, u32)) {
        let extents: Vec<_> = group.iter().map(|&object| self.roots.extent(self.list[object as usize].1)).collect();
        let mut lengths = extents.iter().flatten().map(|(_, length)| length);
        let first_length = lengths.next();
        let comparable = lengths.all(|length| Some(length) == first_length);
        let everywhere = (i64::MIN, i64::MAX);
        let mut parts: Vec<((i64, i64), u32)> = extents
            .iter()
            .zip(group)
            .map(|(extent, &object)| (extent.filter(|_| comparable).map_or(everywhere, |(range, _)| range), object))
            .collect();
        parts.sort_unstable();
        for (position, &((_, end), a)) in parts.iter().enumerate() {
            for &(_, b) in parts[position + 1..].iter().take_while(|((start, _), _)| *start <= end) {
                if self.may_be_same(a, b) {
                    note(a, b);
                }
            }
        }
    }
}

fn no_such_operand(instruction: &Instruction, operand: usize) -> Error {
    Error::NoSuchOperand {
        target: instruction.target.clone(),
        call: instruction.name.clone(),
        operand,
        operands: instruction.operands.len(),
    }
}

fn no_such_attribute(instruction: &Instruction, attribute: &str) -> Error {
    Error::NoSuchAttribute {
        target: instruction.target.clone(),
        call: instruction.name.clone(),
        attribute: attribute.to_owned(),
    }
}
