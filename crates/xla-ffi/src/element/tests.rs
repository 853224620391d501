use super::{BF16, F16};

#[test]
fn every_f16_is_an_f32_and_comes_back() {
    for bits in 0..=u16::MAX {
        let half = F16(bits);
        let single = half.to_f32();
        if single.is_nan() {
            assert!(F16::from_f32(single).to_f32().is_nan(), "{bits:x}");
        } else {
            assert_eq!(F16::from_f32(single), half, "{bits:x}");
        }
    }
    assert_eq!(F16(0x3c01).to_f32().to_bits(), (1.0_f32 + 1.0 / 1024.0).to_bits());
    assert_eq!(F16(0x0001).to_f32().to_bits(), 2.0_f32.powi(-24).to_bits());
    assert_eq!(F16(0xfbff).to_f32().to_bits(), (-65504.0_f32).to_bits());
}

#[test]
fn an_f32_becomes_the_nearest_f16_ties_to_even() {
    for bits in 0..0x7bff_u16 {
        let (low, high) = (F16(bits), F16(bits + 1));
        let middle = f32::midpoint(low.to_f32(), high.to_f32());
        let even = if bits & 1 == 0 { low } else { high };
        assert_eq!(F16::from_f32(middle), even, "{bits:x}");
        assert_eq!(F16::from_f32(f32::from_bits(middle.to_bits() - 1)), low, "{bits:x}");
        assert_eq!(F16::from_f32(f32::from_bits(middle.to_bits() + 1)), high, "{bits:x}");
        assert_eq!(F16::from_f32(-middle).0, even.0 | 0x8000);
    }
    assert_eq!(F16::from_f32(65519.996).0, 0x7bff);
    for infinite in [65520.0, 1e30, f32::INFINITY] {
        assert_eq!(F16::from_f32(infinite).0, 0x7c00);
    }
}

#[test]
fn an_f32_becomes_the_nearest_bf16_ties_to_even() {
    for bits in 0..0x7f7f_u16 {
        let (low, high) = (BF16(bits), BF16(bits + 1));
        let middle = u32::from(bits) << 16 | 0x8000;
        let even = if bits & 1 == 0 { low } else { high };
        assert_eq!(BF16::from_f32(f32::from_bits(middle)), even);
        assert_eq!(BF16::from_f32(f32::from_bits(middle - 1)), low);
        assert_eq!(BF16::from_f32(f32::from_bits(middle + 1)), high);
        assert_eq!(BF16::from_f32(low.to_f32()), low);
    }
    assert!(BF16::from_f32(f32::from_bits(0x7f80_0001)).to_f32().is_nan());
}
