//! The command lines of models: `import step` and `query step`.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs, Subcommand};

use super::Space;

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel import step --sample --data ./models
  tercel import step gearbox.step --data ./models
  tercel import step ./Package_QFP.3dshapes --server 127.0.0.1:7117 --json
  tercel import step ./parts --strict --data ./models

Each file is a model by its name, below the directory that was named. A model replaces the one of its name, and the others stay. \
All models of an import come at once, with its end, or none does.

A file that breaks the form is told with its line and left out whole; with --strict nothing is imported then. \
No schema is needed: instances keep their parameters by position.")]
#[command(group = ArgGroup::new("what").required(true).args(["sample", "path"]))]
pub struct ImportStep {
    /// A file, or a directory whose files ending in .step, .stp or .p21 are taken, also those in directories
    /// below
    #[arg(value_name = "FILE|DIR")]
    pub path: Option<PathBuf>,
    /// Import the sample that comes with the program, a chip of some 400 instances
    #[arg(long)]
    pub sample: bool,
    /// Refuse a directory with a file that cannot be read
    #[arg(long)]
    pub strict: bool,
    /// Print the result as JSON, with all entities and all files left out
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel query step parts --data ./models
  tercel query step closure CHIP-8 --data ./models
  tercel query step box '#42' --model sample.step --json --data ./models

A product is named by its id or its name, any instance by '#' and its number in the file. \
Coordinates are those of the file: placements of parts in an assembly are not applied.")]
pub struct QueryStep {
    #[command(subcommand)]
    pub what: StepWhat,
}

#[derive(Debug, Subcommand)]
pub enum StepWhat {
    /// The models of the space
    #[command(after_help = "Example:\n  tercel query step models --data ./models")]
    Models(OfSpace),
    /// The bill of materials: products, and the products that they use
    #[command(after_help = "Examples:
  tercel query step parts --data ./models
  tercel query step parts --json --data ./models

A use is a NEXT_ASSEMBLY_USAGE_OCCURRENCE. `2 x` counts the uses in the product above.")]
    Parts(OfModel),
    /// All that belongs to a product, or that an instance reaches, by entity
    #[command(after_help = "Examples:
  tercel query step closure BODY --data ./models
  tercel query step closure '#42' --data ./models

From a product the way also leads down to definitions, parts, shapes and geometry, which refer to it.")]
    Closure(OfInstance),
    /// The least box around the points of a closure
    #[command(after_help = "Example:\n  tercel query step box BODY --data ./models")]
    Box(OfInstance),
    /// The instances to which nothing refers, by entity
    #[command(after_help = "Example:\n  tercel query step unused --data ./models")]
    Unused(OfModel),
    /// An instance as the file has it
    #[command(after_help = "Example:\n  tercel query step show '#42' --data ./models")]
    Show(OfInstance),
}

#[derive(Debug, ClapArgs)]
pub struct OfSpace {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
pub struct OfModel {
    /// The model, if the space has several
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    #[command(flatten)]
    pub of: OfSpace,
}

#[derive(Debug, ClapArgs)]
pub struct OfInstance {
    /// A product, or an instance such as '#42'
    pub what: String,
    #[command(flatten)]
    pub of: OfModel,
}

impl StepWhat {
    /// The options of the space.
    pub fn of_space(&self) -> &OfSpace {
        match self {
            StepWhat::Models(of) => of,
            StepWhat::Parts(of) | StepWhat::Unused(of) => &of.of,
            StepWhat::Closure(of) | StepWhat::Box(of) | StepWhat::Show(of) => &of.of.of,
        }
    }

    /// The space, to be filled in.
    pub fn space_mut(&mut self) -> &mut Space {
        match self {
            StepWhat::Models(of) => &mut of.space,
            StepWhat::Parts(of) | StepWhat::Unused(of) => &mut of.of.space,
            StepWhat::Closure(of) | StepWhat::Box(of) | StepWhat::Show(of) => &mut of.of.of.space,
        }
    }
}
