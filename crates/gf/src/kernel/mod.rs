//! The fused kernel `dst[0..r] (^)= M[r×c] × src[0..c]`: its implementations, and the choice for this machine.
//!
//! [`Combination`] cuts a matrix into passes of few rows and few sources; a kernel makes one pass over the bytes with
//! the sums of all its rows in registers. The tests compare every kernel with [`Kernel::Naive`].

mod combination;
mod mirror;
mod naive;
mod pass;
mod scalar;
mod schedule;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod gfni;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod mirrored;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod ssse3;

pub use combination::Combination;
pub(crate) use combination::add_scaled;
#[cfg(test)]
use combination::{even_parts, runs};

use pass::Pass;
use std::{env, fmt, str::FromStr, sync::OnceLock};

/// The environment variable that selects a kernel by name.
const KERNEL_VARIABLE: &str = "WEFT_KERNEL";

/// An implementation of the kernel. All give the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// One product for each byte, by logarithms: the oracle.
    Naive,
    /// Eight bytes at a time in ordinary registers, bit by bit; runs everywhere.
    Scalar,
    /// x86-64: look-ups of half bytes, 16 bytes at a time.
    Ssse3,
    /// x86-64: look-ups of half bytes, 32 bytes at a time.
    Avx2,
    /// x86-64: AVX-512 with GFNI's affine transformation, 64 bytes at a time.
    Gfni,
    /// AArch64: look-ups of half bytes, 16 bytes at a time.
    Neon,
}

impl Kernel {
    /// All of them, the slowest first.
    const ALL: [Self; 6] = [Self::Naive, Self::Scalar, Self::Neon, Self::Ssse3, Self::Avx2, Self::Gfni];

    /// The kernels that run on this machine, the slowest first.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|kernel| kernel.is_available()).collect()
    }

    /// The default kernel: the fastest that runs on this machine, chosen once.
    ///
    /// `WEFT_KERNEL=naive|scalar|ssse3|avx2|gfni|neon` selects another one. An unknown name, or a kernel that does not
    /// run on this machine, is reported once on standard error and then ignored: all kernels give the same bytes.
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| {
            let fastest = Self::available().last().copied().unwrap_or(Self::Scalar);
            let Ok(name) = env::var(KERNEL_VARIABLE) else { return fastest };
            Self::named(&name).unwrap_or_else(|error| {
                eprintln!("weft: {KERNEL_VARIABLE}={name}: {error}; using {fastest}");
                fastest
            })
        })
    }

    /// The kernel of that name, if it runs here.
    fn named(name: &str) -> Result<Self, UnusableKernel> {
        let kernel: Self = name.parse()?;
        if kernel.is_available() { Ok(kernel) } else { Err(UnusableKernel::NotHere(kernel)) }
    }

    /// Whether this machine has the instructions.
    pub fn is_available(self) -> bool {
        match self {
            Self::Naive | Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => ssse3::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Gfni => gfni::is_available(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => neon::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Ssse3 | Self::Avx2 | Self::Gfni => false,
            #[cfg(not(target_arch = "aarch64"))]
            Self::Neon => false,
        }
    }
}

/// A kernel that was checked to run on this machine.
#[derive(Debug, Clone, Copy)]
struct Usable(Kernel);

impl Usable {
    /// The kernel, or the scalar one if it does not run here.
    fn or_scalar(kernel: Kernel) -> Self {
        Self(if kernel.is_available() { kernel } else { Kernel::Scalar })
    }

    /// One pass over the bytes.
    #[inline]
    #[allow(unsafe_code)]
    fn run(self, pass: Pass<'_, '_>) {
        // SAFETY: only `or_scalar` creates these, and it has checked the instructions of all kernels but the portable
        // ones.
        match self.0 {
            Kernel::Naive => naive::run(pass),
            #[cfg(target_arch = "x86_64")]
            Kernel::Ssse3 => unsafe { ssse3::run(pass) },
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => unsafe { avx2::run(pass) },
            #[cfg(target_arch = "x86_64")]
            Kernel::Gfni => unsafe { gfni::run(pass) },
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => unsafe { neon::run(pass) },
            _ => scalar::run(pass),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Naive => "naive",
            Self::Scalar => "scalar",
            Self::Ssse3 => "ssse3",
            Self::Avx2 => "avx2",
            Self::Gfni => "gfni",
            Self::Neon => "neon",
        })
    }
}

impl FromStr for Kernel {
    type Err = UnusableKernel;

    fn from_str(name: &str) -> Result<Self, UnusableKernel> {
        Self::ALL.into_iter().find(|kernel| kernel.to_string() == name).ok_or(UnusableKernel::Unknown)
    }
}

/// Why a named kernel cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnusableKernel {
    /// The name is unknown.
    Unknown,
    /// This machine lacks the instructions.
    NotHere(Kernel),
}

impl fmt::Display for UnusableKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => write!(f, "no such kernel")?,
            Self::NotHere(kernel) => write!(f, "{kernel} does not run on this machine")?,
        }
        let usable: Vec<String> = Kernel::available().iter().map(ToString::to_string).collect();
        write!(f, " (available: {})", usable.join(", "))
    }
}

impl std::error::Error for UnusableKernel {}
