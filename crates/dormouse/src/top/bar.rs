//! A bar whose parts add up to its length.

/// The columns of each part in a bar of so many columns. Their sum is that of the bar, unless all parts are 0.
pub fn columns_of(parts: &[u64], columns: usize) -> Vec<usize> {
    let whole: u128 = parts.iter().map(|part| u128::from(*part)).sum();
    let (mut sum, mut end) = (0, 0);
    let columns_of = |part: &u64| {
        sum += u128::from(*part);
        // The ends of parts are rounded, not their lengths: errors do not add up.
        let scaled = (sum * columns as u128 * 2 + whole).checked_div(whole * 2).unwrap_or(0);
        let start = std::mem::replace(&mut end, usize::try_from(scaled).unwrap_or(columns));
        end - start
    };
    parts.iter().map(columns_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        for parts in
            [vec![1, 1, 1], vec![0, 5, 0, 1 << 60], vec![u64::MAX; 9], vec![1; 100], vec![7, 93, 900]]
        {
            for columns in [0, 1, 7, 40, 500] {
                let widths = columns_of(&parts, columns);
                assert_eq!((widths.len(), widths.iter().sum::<usize>()), (parts.len(), columns), "{parts:?}");
            }
        }
        assert_eq!(columns_of(&[1, 2, 1], 8), [2, 4, 2]);
        assert_eq!((columns_of(&[0, 0], 8), columns_of(&[], 8)), (vec![0, 0], vec![]));
    }
}
