package store

import (
	"encoding/binary"
	"time"
)

const (
	// budgetKey is the key of the budget in each transaction. No other key is empty.
	budgetKey = ""
	// minCharge is the least that flash writes: the data, the journal of the file system and the inode.
	minCharge = 16 << 10
)

// budget is how many bytes may be written. It fills up with the hourly bytes within an hour.
type budget struct {
	hourly, left int64
	at           time.Time
}

func newBudget(hourly int64, now time.Time) budget {
	return budget{hourly: hourly, left: hourly, at: now}
}

// fill adds the bytes for the time since the last fill. It adds nothing if the clock was set back.
func (b *budget) fill(now time.Time) {
	since := min(max(now.Sub(b.at), 0), time.Hour)
	b.left = min(b.left+int64(float64(b.hourly)*since.Hours()), b.hourly)
	b.at = now
}

// entry is the budget in a transaction.
func (b *budget) entry() []byte {
	value := binary.BigEndian.AppendUint64(nil, uint64(b.left))      //nolint:gosec // it is read as signed
	return binary.BigEndian.AppendUint64(value, uint64(b.at.Unix())) //nolint:gosec // as above
}

// load restores the budget of an earlier process. The newest transaction is loaded last.
func (b *budget) load(value []byte) {
	if len(value) != 16 || b.hourly == 0 {
		return
	}
	now := b.at
	//nolint:gosec // they were written from signed numbers
	b.left, b.at = int64(binary.BigEndian.Uint64(value)), time.Unix(int64(binary.BigEndian.Uint64(value[8:])), 0)
	b.fill(now)
}

// budgetEntry is the budget after a transaction of so many bytes.
func (s *Store) budgetEntry(bytes int64) []byte {
	after := s.budget
	after.fill(s.options.Now())
	after.left -= max(bytes, minCharge)
	return after.entry()
}

// charge counts bytes that were written, or that a failed write tried to write.
func (s *Store) charge(bytes int64) {
	s.written += bytes
	s.budget.fill(s.options.Now())
	s.budget.left -= max(bytes, minCharge)
}

// Due reports whether the budget has bytes left. Urgent changes may be committed nevertheless.
func (s *Store) Due() bool {
	s.budget.fill(s.options.Now())
	return s.budget.left > 0
}

// Spare reports whether more than half of the budget is left.
func (s *Store) Spare() bool { return s.Due() && s.budget.left > s.budget.hourly/2 }

// Written is how many bytes were written since Open.
func (s *Store) Written() int64 { return s.written }
