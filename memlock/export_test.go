package memlock

// Forget loses all that the coordinator knows.
func (c *Coordinator) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = 0
	clear(c.locks)
	clear(c.far)
}

// Kept counts the entries that the coordinator keeps.
func (c *Coordinator) Kept() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.locks) + len(c.watchers)
}
