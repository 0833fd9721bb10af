// Package skew runs programs of an older commit beside today's, as they meet during an upgrade and on the way
// back: hub and
// wrappers, wrappers of one site, a snapshot on the disk, and controllers with their CRDs. Only tests are in it; make
// test-skew builds the older programs and names their directory in OLDER_BIN.
package skew
