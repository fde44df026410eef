//! Ordered map and list as ordinary Tercel objects.
