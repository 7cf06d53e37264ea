//! The Python module `gradclip._core`: the only module that uses Python.

mod array;
mod bound;
mod call;
mod classes;
mod clip;
mod clip_difference;
mod clip_each;
mod clip_examples;
mod device;
mod kinds;
mod memory_limit;
mod norm;
mod operands;
mod overlap;
mod process;
mod run;
mod settings;
mod shared;
mod sum_rows;

use pyo3::prelude::*;

/// The compiled part of gradclip. Its functions are the functions of the package, without defaults; see `gradclip`.
#[pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;

    use crate::isa::Isa;

    #[pymodule_export]
    use super::{
        clip::{clip_by_global_norm, clip_by_norm, clip_by_value},
        clip_difference::clip_difference_by_global_norm,
        clip_each::{clip_by_norms, clip_by_weight_norm},
        clip_examples::clip_examples_by_global_norm,
        device::keep_apart,
        memory_limit::memory_of_process,
        norm::{global_norm, norm, normalize, norms},
        process::{exiting, forked},
        settings::{
            config, forget_settings, get_num_threads, isa_levels, set_isa, set_num_threads, trim, use_team,
        },
        shared::{exact_sum, merge_power_sums, power_sums, power_sums_along, roots_of_power_sums},
        sum_rows::sum_rows,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Without NumPy, the `numpy` crate panics when it looks up NumPy's functions.
        module.py().import("numpy")?;
        // These lookups take as long as a hundred small calls, so the import makes them before a first call: the features of
        // the CPU (on a virtual machine) and NumPy's functions (a regular expression reads its version).
        let _ = Isa::current();
        numpy::dtype::<f64>(module.py());
        Ok(())
    }

    #[pymodule_export]
    const MAX_THREADS: usize = crate::parallel::MAX_THREADS;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
