package store

import (
	"encoding/binary"
	"time"
)

const (
	// markKey is the key of the mark of each transaction: its number, and the budget. No other key is empty.
	markKey = ""
	// markSize is the size of four numbers of 8 bytes.
	markSize = 4 * 8
	// minCharge is the least that flash writes: the data, the journal of the file system and the inode.
	minCharge = 16 << 10
)

// budget is how many bytes may be written. It fills up with the hourly bytes within an hour.
type budget struct {
	hourly, left int64
	// owed is how many bytes of whole states were written beyond what was left.
	owed int64
	at   time.Time
}

// fill adds the bytes for the time since the last fill. It adds nothing if the clock was set back. Half of the bytes
// pay what is owed, and more of them once the budget is full.
func (b *budget) fill(now time.Time) {
	since := min(max(now.Sub(b.at), 0), time.Hour)
	bytes := int64(float64(b.hourly) * since.Hours())
	pays := min(b.owed, max(bytes/2, bytes-max(b.hourly-b.left, 0)))
	b.owed -= pays
	b.left = min(b.left+bytes-pays, b.hourly)
	b.at = now
}

// charge takes bytes that were written.
type charge func(b *budget, bytes int64)

// spend is the charge for changes.
func (b *budget) spend(bytes int64) { b.left -= max(bytes, minCharge) }

// owe is the charge for a whole state. It leaves no debt that changes would wait for.
func (b *budget) owe(bytes int64) {
	bytes = max(bytes, minCharge)
	paid := min(bytes, max(b.left, 0))
	b.left, b.owed = b.left-paid, b.owed+bytes-paid
}

// append appends the budget to a mark.
func (b *budget) append(value []byte) []byte {
	for _, number := range []int64{b.left, b.at.Unix(), b.owed} {
		value = binary.BigEndian.AppendUint64(value, uint64(number)) //nolint:gosec // it is read as signed
	}
	return value
}

// load restores the budget of an earlier process from its last mark.
func (b *budget) load(mark []byte) {
	if len(mark) != markSize || b.hourly == 0 {
		return
	}
	now := b.at
	number := func(at int) int64 {
		return int64(binary.BigEndian.Uint64(mark[at:])) //nolint:gosec // it was written from a signed number
	}
	b.left, b.at, b.owed = number(8), time.Unix(number(16), 0), max(number(24), 0)
	b.fill(now)
}

// numberOf returns the number in the mark that ends a transaction; 0 if it has none.
func numberOf(transaction []entry) uint64 {
	if len(transaction) == 0 || len(transaction[len(transaction)-1].value) != markSize {
		return 0
	}
	return binary.BigEndian.Uint64(transaction[len(transaction)-1].value)
}

// markAfter returns the function that makes the mark of a transaction of so many bytes.
func (s *Store) markAfter(by charge) func(bytes int64) []byte {
	return func(bytes int64) []byte {
		after := s.budget
		after.fill(s.options.Now())
		by(&after, bytes)
		return after.append(binary.BigEndian.AppendUint64(nil, s.number))
	}
}

// charge counts bytes that were written, or that a failed write tried to write.
func (s *Store) charge(bytes int64, by charge) {
	s.written += bytes
	s.budget.fill(s.options.Now())
	by(&s.budget, bytes)
}

// Left returns how many bytes of the budget are left for the next commit; 0 if it is not within the budget. Urgent
// changes may be committed nevertheless.
func (s *Store) Left() int64 {
	s.budget.fill(s.options.Now())
	if s.budget.owed > 0 && s.needsState() {
		return 0
	}
	return max(s.budget.left, 0)
}

// Written is how many bytes were written since Open.
func (s *Store) Written() int64 { return s.written }
