//! Norms: of many arrays as one, and of the slices of one array.

mod columns;
mod list;
mod order;
mod pass;
mod power_sum;
mod slices;

pub(super) use self::columns::{
    ReadRows, WIDEST_STRIP, add_rows, has_exact_zero_columns, run_of_columns, sum_columns,
};
pub use self::list::{AnyView, EachSum, Views, exact_sum, norm_of_array, norm_of_views, norms_of_views};
pub(super) use self::order::Reduction;
pub use self::order::{Order, norm_of_norms};
pub(super) use self::pass::{Blocks, has_exact_zeros, norm_of_view_with, row_sums};
pub use self::pass::{CHUNK, SHORT, Terms, norm_of_view};
pub use self::power_sum::MAX_SUMMED_ORDER;
pub use self::slices::norms_into;
pub(super) use self::slices::slices_in_job;
