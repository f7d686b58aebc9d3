-- ARGV: holder, token (0: whatever the holder holds, or its place in the queue), inbox.
-- Returns {1} when released, {0} when the lock is free, {0, token, own} when another grant has it; own is 1 for the same holder.
local holder = redis.call('HGET', KEYS[1], 'holder')
local token = holder and redis.call('HGET', KEYS[1], 'token')
if holder == ARGV[1] and (ARGV[2] == '0' or ARGV[2] == token) then
  redis.call('DEL', KEYS[1])
  offer(nil)
  return {1}
end
local me = ARGV[3] .. ARGV[1]
if ARGV[2] == '0' and redis.call('EXISTS', KEYS[3]) == 1 then
  local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  redis.call('ZREM', KEYS[3], me)
  if first == me then
    alert(math.max(redis.call('PTTL', KEYS[1]), 0)) -- it may have been told to look for the others
  end
end
if not holder then
  return {0}
end
return {0, token, holder == ARGV[1] and 1 or 0}
