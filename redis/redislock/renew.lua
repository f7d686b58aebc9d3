-- ARGV: holder, token, TTL in ms.
-- Returns {1} when renewed, {0} when the lock is free, {0, token, own} when another grant has it; own is 1 for the same holder.
local holder = redis.call('HGET', KEYS[1], 'holder')
if not holder then
  return {0}
end
local token = redis.call('HGET', KEYS[1], 'token')
if holder ~= ARGV[1] or token ~= ARGV[2] then
  return {0, token, holder == ARGV[1] and 1 or 0}
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
count(token, tonumber(ARGV[3]))
return {1}
