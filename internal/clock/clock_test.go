package clock

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleepIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slept := time.Duration(0)
		start := time.Now()
		c := NewWith(func() (time.Duration, bool) { return 5*time.Hour + time.Since(start) + slept, true })
		time.Sleep(time.Second)
		if got := c.Now(); got != time.Second {
			t.Fatalf("after one second awake the clock reads %v", got)
		}
		slept = time.Hour
		if got := c.Now(); got != time.Hour+time.Second {
			t.Fatalf("after an hour of sleep the clock reads %v", got)
		}
	})
}

func TestABootClockThatStandsStillIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewWith(func() (time.Duration, bool) { return time.Hour, true })
		time.Sleep(time.Minute)
		if got := c.Now(); got != time.Minute {
			t.Fatalf("the clock reads %v, want 1m", got)
		}
	})
}

func TestWithoutABootClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, boot := range map[string]func() (time.Duration, bool){
			"none": nil, "unreadable": func() (time.Duration, bool) { return 0, false },
		} {
			c := NewWith(boot)
			time.Sleep(time.Second)
			if c.CountsSleep() || c.Now() != time.Second {
				t.Errorf("%s: counts sleep %v, reads %v", name, c.CountsSleep(), c.Now())
			}
		}
	})
}

func TestTheMachinesClock(t *testing.T) {
	c := New()
	if want := runtime.GOOS == "linux"; c.CountsSleep() != want {
		t.Errorf("CountsSleep is %v, want %v", c.CountsSleep(), want)
	}
	before := c.Now()
	if after := c.Now(); after < before {
		t.Errorf("the clock went from %v back to %v", before, after)
	}
}
