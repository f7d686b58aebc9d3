-- KEYS: lock, token counter, queue. The queue is a sorted set of waiters by order of
-- arrival; a waiter is its inbox (16 characters) and its holder id.

-- now is the server's time in ms.
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- count keeps token as the last one of the lock, whose lease is of ttl ms: for long
-- enough, and until the clock has passed it, so that what follows is above it.
local function count(token, ttl)
  local last = math.max(idle, ttl) + math.max(0, tonumber(token) - now())
  redis.call('SET', KEYS[2], token, 'PX', string.format('%.0f', last))
end

-- mint makes the next token above floor; nil when none is left.
local function mint(floor)
  local last = tonumber(redis.call('GET', KEYS[2]) or '0')
  local token = math.max(last + 1, now(), floor + 1)
  return token <= most and string.format('%.0f', token) or nil
end

-- tell says when to look, in ms from now, and returns whether anybody listens.
local function tell(waiter, look)
  local heard = redis.pcall(publish, channel(string.sub(waiter, 1, 16)), look .. ' ' .. string.sub(waiter, 17))
  return type(heard) == 'number' and heard > 0
end

-- alert tells the first waiter when to look and forgets those that are gone.
local function alert(look)
  while true do
    local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
    if not first or tell(first, look) then
      return
    end
    redis.call('ZREM', KEYS[3], first)
  end
end

-- offer grants the free lock to the first waiter, who has to claim it; the one after
-- it looks when the time for that is over. Waiters that are gone are passed over.
-- When the turn is me's, who is asking, it only takes the place from the queue.
-- Returns the waiter, nil when there is none.
local function offer(me)
  while true do
    local first = redis.call('ZPOPMIN', KEYS[3])[1]
    if not first or first == me then
      return first
    end
    if tell(first, 0) then
      local token = mint(0)
      if not token then
        return nil
      end
      count(token, claim)
      redis.call('HSET', KEYS[1], 'holder', string.sub(first, 17), 'owner', '', 'token', token)
      redis.call('PEXPIRE', KEYS[1], claim)
      alert(claim)
      return first
    end
  end
end

