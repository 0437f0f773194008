//! All cluster tests in one binary, and the tidy test. Each module is one promise of the product.

mod tidy;
