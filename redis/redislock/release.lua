-- KEYS: lock. ARGV: holder, token (0: whatever the holder holds), channel.
-- Returns {1} when released, {0} when the lock is free, {0, token, own} when another grant has it; own is 1 for the same holder.
local holder = redis.call('HGET', KEYS[1], 'holder')
if not holder then
  return {0}
end
local token = redis.call('HGET', KEYS[1], 'token')
if holder ~= ARGV[1] or (ARGV[2] ~= '0' and token ~= ARGV[2]) then
  return {0, token, holder == ARGV[1] and 1 or 0}
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[3], '')
return {1}
