-- ARGV: token.
-- Returns {1} when broken, {0} when the lock is free, {0, token, owner, ms left} when another grant has it.
local token = redis.call('HGET', KEYS[1], 'token')
if not token then
  return {0}
end
if token ~= ARGV[1] then
  return {0, token, redis.call('HGET', KEYS[1], 'owner'), redis.call('PTTL', KEYS[1])}
end
redis.call('DEL', KEYS[1])
offer(nil)
return {1}
