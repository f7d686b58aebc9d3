-- KEYS: lock, token counter. ARGV: holder, owner, TTL in ms, floor, greatest token, idle time of the counter in ms.
-- Returns {1, token} when granted, {0, token, owner, ms left} when another holder has it.
local holder = redis.call('HGET', KEYS[1], 'holder')
if holder and holder ~= ARGV[1] then
  return {0, redis.call('HGET', KEYS[1], 'token'), redis.call('HGET', KEYS[1], 'owner'), redis.call('PTTL', KEYS[1])}
end
local floor, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local token = holder and tonumber(redis.call('HGET', KEYS[1], 'token')) or 0
if token <= floor or token == 0 then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local last = tonumber(redis.call('GET', KEYS[2]) or '0')
  token = math.max(last + 1, now, floor + 1)
  if token > most then
    return redis.error_reply('PITON no token above ' .. string.format('%.0f', token - 1) .. ' is left')
  end
end
local text = string.format('%.0f', token)
redis.call('SET', KEYS[2], text, 'PX', ARGV[6])
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'owner', ARGV[2], 'token', text)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, text}
