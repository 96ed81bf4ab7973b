"""DiLoCo: workers that train alone and exchange their progress; outer optimizer, compression, fragments."""
