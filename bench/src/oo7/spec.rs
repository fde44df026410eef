//! The size of a database.

/// The numbers that make one module, named as in the OO7 paper's table of parameters. None of them is zero,
/// but the lengths of texts may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Atomic parts in a composite part (NumAtomicPerComp).
    pub parts_per_composite: u32,
    /// Connections that leave an atomic part (NumConnPerAtomic).
    pub connections_per_part: u32,
    /// Length of a composite part's document (DocumentSize).
    pub document_bytes: u32,
    /// Length of the module's manual (ManualSize).
    pub manual_bytes: u32,
    /// Composite parts in the module (NumCompPerModule).
    pub composites: u32,
    /// Children of a complex assembly (NumAssmPerAssm).
    pub assemblies_per_assembly: u32,
    /// Levels of the tree of assemblies, the base assemblies among them (NumAssmLevels).
    pub assembly_levels: u32,
    /// Private references of a base assembly to composite parts, and as many shared ones (NumCompPerAssm).
    pub composites_per_assembly: u32,
}

impl Spec {
    /// The small database: 42,095 objects.
    pub const SMALL: Spec = Spec {
        parts_per_composite: 20,
        connections_per_part: 3,
        document_bytes: 2_000,
        manual_bytes: 100 * 1024,
        composites: 500,
        assemblies_per_assembly: 3,
        assembly_levels: 7,
        composites_per_assembly: 3,
    };

    /// The medium database: 402,095 objects.
    pub const MEDIUM: Spec =
        Spec { parts_per_composite: 200, document_bytes: 20_000, manual_bytes: 1024 * 1024, ..Self::SMALL };

    #[cfg(test)]
    /// A database for tests, the smallest in which every kind of link occurs: 279 objects.
    pub const TINY: Spec = Spec {
        parts_per_composite: 5,
        document_bytes: 100,
        manual_bytes: 200,
        composites: 12,
        assembly_levels: 3,
        ..Self::SMALL
    };

    /// Assemblies that hold assemblies.
    pub fn complex_assemblies(&self) -> u32 {
        (0..self.assembly_levels - 1).map(|level| self.assemblies_per_assembly.pow(level)).sum()
    }

    /// Assemblies that hold composite parts.
    pub fn base_assemblies(&self) -> u32 {
        self.assemblies_per_assembly.pow(self.assembly_levels - 1)
    }

    pub fn assemblies(&self) -> u32 {
        self.complex_assemblies() + self.base_assemblies()
    }

    /// Atomic parts in the module.
    pub fn parts(&self) -> u32 {
        self.composites * self.parts_per_composite
    }

    /// Connections in the module.
    pub fn connections(&self) -> u32 {
        self.parts() * self.connections_per_part
    }

    /// All objects: the module, its manual, assemblies, composite parts, a document each, atomic parts and
    /// connections.
    pub fn objects(&self) -> u32 {
        2 + self.assemblies() + 2 * self.composites + self.parts() + self.connections()
    }

    /// Visits to atomic parts by traversal T6, which is one for each private reference of a base assembly.
    pub fn t6_visits(&self) -> u64 {
        u64::from(self.base_assemblies()) * u64::from(self.composites_per_assembly)
    }

    /// Visits to atomic parts by traversal T1.
    pub fn t1_visits(&self) -> u64 {
        self.t6_visits() * u64::from(self.parts_per_composite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_those_of_the_papers() {
        assert_eq!((Spec::SMALL.complex_assemblies(), Spec::SMALL.base_assemblies()), (364, 729));
        assert_eq!((Spec::SMALL.objects(), Spec::MEDIUM.objects()), (42_095, 402_095));
        assert_eq!((Spec::SMALL.t1_visits(), Spec::SMALL.t6_visits()), (43_740, 2_187));
        assert_eq!((Spec::MEDIUM.t1_visits(), Spec::MEDIUM.t6_visits()), (437_400, 2_187));
        assert_eq!(Spec::TINY.objects(), 279);
    }
}
