//! Arithmetic on single elements, with tables of logarithms to base 2 (a generator for 0x11d).

const TABLES: ([u8; 512], [u8; 256]) = tables();

const fn tables() -> ([u8; 512], [u8; 256]) {
    let (mut exp, mut log) = ([0u8; 512], [0u8; 256]);
    let (mut power, mut x) = (0, 1u16);
    while power < 255 {
        exp[power] = x as u8;
        exp[power + 255] = x as u8;
        log[x as usize] = power as u8;
        x <<= 1;
        if x & 0x100 != 0 {
            x ^= 0x11d;
        }
        power += 1;
    }
    (exp, log)
}

/// The product a·b.
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.0[TABLES.1[a as usize] as usize + TABLES.1[b as usize] as usize]
}

/// The inverse of `a`; `None` for zero.
pub const fn inv(a: u8) -> Option<u8> {
    if a == 0 { None } else { Some(TABLES.0[255 - TABLES.1[a as usize] as usize]) }
}

/// The generator's power 2^e.
pub const fn exp(e: usize) -> u8 {
    TABLES.0[e % 255]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: carry-less multiplication, reduced by the polynomial.
    fn slow(a: u8, b: u8) -> u8 {
        let mut product = 0u16;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= u16::from(a) << bit;
            }
        }
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x11d << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn products_and_inverses_follow_the_definition() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(mul(a, b), slow(a, b), "{a}·{b}");
            }
            if let Some(inverse) = inv(a) {
                assert_eq!(mul(a, inverse), 1);
            }
        }
        assert_eq!(inv(0), None);
        assert_eq!((exp(0), exp(1), exp(8), exp(255)), (1, 2, 0x1d, 1));
    }
}
