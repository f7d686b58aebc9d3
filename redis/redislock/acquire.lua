-- ARGV: holder, owner, TTL in ms, floor, inbox (empty: the holder does not queue).
-- Returns {1, token} when granted, {0, token, owner, ms left} when another holder has it.
local me = ARGV[5] ~= '' and ARGV[5] .. ARGV[1]
local holder = redis.call('HGET', KEYS[1], 'holder')
if not holder and redis.call('EXISTS', KEYS[3]) == 1 then
  local first = offer(me)
  holder = first and first ~= me and string.sub(first, 17)
end
if holder and holder ~= ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if me then
    if not redis.call('ZSCORE', KEYS[3], me) then
      local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
      redis.call('ZADD', KEYS[3], (tonumber(last) or 0) + 1, me)
    end
    redis.call('PEXPIRE', KEYS[3], math.max(left + linger, redis.call('PTTL', KEYS[3])))
  end
  return {0, redis.call('HGET', KEYS[1], 'token'), redis.call('HGET', KEYS[1], 'owner'), left}
end
local floor = tonumber(ARGV[4])
local token = holder and redis.call('HGET', KEYS[1], 'token')
if not token or tonumber(token) <= floor then
  token = mint(floor)
  if not token then
    return redis.error_reply('PITON no token above the floor is left')
  end
end
count(token, tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'owner', ARGV[2], 'token', token)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, token}
